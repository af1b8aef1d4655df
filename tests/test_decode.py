import numpy as np
import tensorflow as tf

from mrnn_tf import decode, schema
from mrnn_tf.config import ModelConfig
from mrnn_tf.model.mrnn import MRNN

A, B = 4, 5


def chain(table):
    """A step function without memory: row i holds the probabilities after word i."""
    logits = tf.math.log(tf.constant(table, tf.float32))
    return lambda ids, state: (tf.gather(logits, ids), state)


TABLE = np.full((6, 6), 1e-6)
TABLE[schema.START_ID, [A, schema.UNKNOWN_ID]] = [0.3, 0.7]
TABLE[A, [B, schema.END_ID]] = [0.8, 0.2]
TABLE[B, [schema.END_ID, A]] = [0.6, 0.4]


def test_greedy_takes_the_best_word_and_never_an_unknown_one():
    ids, log_probs = decode.greedy(chain(TABLE), (), tf.constant(2), max_words=5)
    assert ids.numpy().tolist() == [[A, B, schema.END_ID, 0, 0, 0]] * 2
    np.testing.assert_allclose(log_probs, [np.log(0.3 * 0.8 * 0.6)] * 2, rtol=1e-4)


def test_a_cut_sentence_pays_for_its_end():
    ids, log_probs = decode.greedy(chain(TABLE), (), tf.constant(1), max_words=1)
    assert ids.numpy().tolist() == [[A, schema.END_ID]]
    np.testing.assert_allclose(log_probs, [np.log(0.3 * 0.2)], rtol=1e-4)


def test_the_log_probability_is_the_models_own_and_batches_do_not_matter():
    model = MRNN(ModelConfig(embedding_1=3, embedding_2=4, recurrent=4, multimodal=5), 9, 7)
    features = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    ids, log_probs = decode.captions(model, features, max_words=6)
    for row in range(5):
        alone, alone_log_prob = decode.captions(model, features[row : row + 1], max_words=6)
        np.testing.assert_array_equal(alone[0], ids[row])
        np.testing.assert_allclose(alone_log_prob[0], log_probs[row], rtol=1e-5)
        targets = ids[row : row + 1]
        inputs = np.concatenate([[[schema.START_ID]], targets[:, :-1]], axis=1)
        logits = model({schema.FEATURES: features[row : row + 1], schema.WORD_IDS: inputs})
        scores = tf.gather(tf.nn.log_softmax(logits), targets, batch_dims=2)
        expected = tf.reduce_sum(tf.where(targets == schema.PAD_ID, 0.0, scores))
        np.testing.assert_allclose(log_probs[row], expected, rtol=1e-4)

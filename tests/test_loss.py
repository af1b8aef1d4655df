import numpy as np
import pytest
import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.config import ModelConfig
from mrnn_tf.model import MRNN, loss

WORDS = 7
TARGETS = np.array([[5, 4, 6, schema.END_ID], [4, schema.END_ID, 0, 0], [schema.END_ID, 0, 0, 0]])


@pytest.fixture
def logits():
    return np.random.default_rng(0).normal(0, 3, (*TARGETS.shape, WORDS)).astype("float32")


def reference_bits(logits, targets):
    """-log2 P of every sentence, one word at a time."""
    total = np.zeros(len(targets))
    for i, sentence in enumerate(targets):
        for t, word in enumerate(sentence):
            if word != schema.PAD_ID:
                p = np.exp(logits[i, t].astype("float64"))
                total[i] -= np.log2(p[word] / p.sum())
    return total


def test_costs_equal_the_reference(logits):
    expected = reference_bits(logits, TARGETS)
    bits, words = loss.sentence_costs(logits, TARGETS)
    np.testing.assert_allclose(bits, expected, rtol=1e-5)
    np.testing.assert_array_equal(words, [4, 2, 1])
    bits, words = loss.word_costs(logits, TARGETS)
    np.testing.assert_allclose(bits, expected.sum(), rtol=1e-5)
    assert words == 7
    np.testing.assert_allclose(loss.perplexity(bits, words), 2 ** (expected.sum() / 7), rtol=1e-5)


def test_equal_logits_have_the_perplexity_of_the_vocabulary():
    bits, words = loss.word_costs(tf.zeros((*TARGETS.shape, WORDS)), TARGETS)
    np.testing.assert_allclose(loss.perplexity(bits, words), WORDS, rtol=1e-5)


def test_padding_contributes_nothing(logits):
    other = np.where((TARGETS == schema.PAD_ID)[..., None], np.float32(1e4), logits)
    with tf.GradientTape() as tape:
        variable = tf.Variable(other)
        bits, words = loss.word_costs(variable, TARGETS)
    assert bits == loss.word_costs(logits, TARGETS)[0]
    assert words == loss.word_costs(logits, TARGETS)[1]
    gradient = tape.gradient(bits, variable).numpy()
    assert not gradient[TARGETS == schema.PAD_ID].any()
    assert gradient[TARGETS != schema.PAD_ID].any(axis=-1).all()


def test_a_ragged_last_batch_does_not_change_the_perplexity(logits):
    whole = loss.perplexity(*loss.word_costs(logits, TARGETS))
    parts = [loss.word_costs(logits[s], TARGETS[s]) for s in (slice(0, 2), slice(2, 3))]
    bits, words = (sum(each) for each in zip(*parts, strict=True))
    np.testing.assert_allclose(loss.perplexity(bits, words), whole, rtol=1e-6)


def test_l2_is_the_squared_norm_of_all_trainable_parameters():
    model = MRNN(ModelConfig(embedding_1=3, embedding_2=4, recurrent=4, multimodal=5), 9, 6)
    expected = sum(np.square(each.numpy()).sum() for each in model.trainable_variables)
    np.testing.assert_allclose(loss.l2(model), expected, rtol=1e-5)

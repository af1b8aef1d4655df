"""A small random network with sentences and images that differ, and their scores by the model."""

import numpy as np
import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.config import ModelConfig
from mrnn_tf.model import MRNN
from mrnn_tf.retrieval import sentences
from mrnn_tf.retrieval.scoring import Scorer

V, D = 23, 9
SIZES = {"embedding_1": 5, "embedding_2": 8, "recurrent": 8, "multimodal": 12}


def network(variant="mrnn", **fields):
    model = MRNN(ModelConfig(variant, **{**SIZES, **fields}), V, D)
    rng = np.random.default_rng(0)
    for each in model.trainable_variables:
        each.assign(rng.normal(0, 0.6, each.shape))
    return model


def random_sentences(count, longest=7, seed=1):
    """Ids of sentences; many begin alike, one is empty."""
    rng = np.random.default_rng(seed)
    ids = [rng.integers(4, 10, rng.integers(1, longest + 1)).tolist() for _ in range(count - 1)]
    return [*ids, []]


def features(count, seed=2):
    return np.random.default_rng(seed).normal(0, 1, (count, D)).astype("float32")


def naive(model, ids, images):
    """log P [S, I], every sentence by a call of the Keras model with all images."""
    scores = np.zeros((len(ids), len(images)))
    for row, sentence in enumerate(ids):
        words = np.array([[schema.START_ID, *sentence]] * len(images))
        logits = model({schema.FEATURES: images, schema.WORD_IDS: words})
        chosen = [*sentence, schema.END_ID]
        log_probs = tf.nn.log_softmax(logits).numpy()
        scores[row] = log_probs[:, np.arange(len(chosen)), chosen].sum(axis=1)
    return scores


def searched(variant="mrnn", sentence_count=17, image_count=13, **fields):
    """(scorer, sentences as read, images projected, log P by the model itself)."""
    model = network(variant, **fields)
    scorer = Scorer(model)
    ids, images = random_sentences(sentence_count), features(image_count)
    read = scorer.read(sentences.pad(ids))
    return scorer, read, scorer.project(images), naive(model, ids, images)

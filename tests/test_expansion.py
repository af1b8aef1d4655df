import numpy as np
import pytest
import searching
import tensorflow as tf

from mrnn_tf.retrieval.expansion import bounds, word_bounds


@pytest.fixture(scope="module", params=["mrnn", "mrnn_shared"])
def expanded(request):
    scorer, read, images, expected = searching.searched(request.param)
    mean = images.mean(axis=0)
    return scorer, read, images, expected, mean, scorer.expand(read, mean)


def bounds_of(expansion, images):
    return tf.function(bounds)(expansion, tf.constant(images)).numpy()


def test_no_score_is_above_its_bound(expanded):
    _, _, images, expected, _, expansion = expanded
    highest = bounds_of(expansion, images)
    assert (highest >= expected - 1e-4).all()
    assert (highest > expected + 0.1).any()  # a bound, not the score


def test_the_bounds_of_words_add_up(expanded):
    _, read, images, _, _, expansion = expanded
    rows = np.repeat(np.arange(len(read.words)), len(images))
    every = np.tile(images, (len(read.words), 1))
    by_word = tf.function(word_bounds)(expansion, tf.constant(rows), tf.constant(every)).numpy()
    assert (by_word[read.words.numpy()[rows] == 0] == 0).all()
    highest = bounds_of(expansion, images)
    np.testing.assert_allclose(by_word.sum(1).reshape(highest.shape), highest, atol=1e-4)


def test_all_is_exact_at_the_mean_image(expanded):
    scorer, read, _, _, mean, expansion = expanded
    exact = scorer.matrix(read, mean[np.newaxis])[:, 0]
    np.testing.assert_allclose(expansion.log_probs.numpy().sum(axis=1), exact, atol=1e-4)
    np.testing.assert_allclose(bounds_of(expansion, mean[np.newaxis])[:, 0], exact, atol=1e-4)


def test_vectors_are_the_slope_at_the_mean_image(expanded):
    scorer, read, images, _, mean, expansion = expanded
    step = 3e-3 * (images - mean)
    change = scorer.matrix(read, mean + step) - scorer.matrix(read, mean - step)
    np.testing.assert_allclose(2 * expansion.vectors.numpy() @ step.T, change, atol=1e-3)
    assert np.abs(change).max() > 0.05

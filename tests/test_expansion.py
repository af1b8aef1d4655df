import numpy as np
import pytest
import searching

from mrnn_tf.retrieval.expansion import expand


@pytest.fixture(scope="module", params=["mrnn", "mrnn_shared"])
def expanded(request):
    scorer, read, images, expected = searching.searched(request.param)
    mean = images.mean(axis=0)
    return scorer, read, images, expected, mean, expand(scorer, read, mean)


def test_no_score_is_above_its_bound(expanded):
    _, _, images, expected, _, expansion = expanded
    bounds = expansion.bounds(images)
    assert (bounds >= expected - 1e-4).all()
    assert (bounds > expected + 0.1).any()  # a bound, not the score


def test_the_bounds_of_words_add_up(expanded):
    _, read, images, _, _, expansion = expanded
    rows = np.repeat(np.arange(len(read)), len(images))
    by_word = expansion.word_bounds(rows, np.tile(images, (len(read), 1)))
    assert (by_word[read.words[rows] == 0] == 0).all()
    bounds = expansion.bounds(images)
    np.testing.assert_allclose(by_word.sum(1).reshape(bounds.shape), bounds, atol=1e-4)


def test_all_is_exact_at_the_mean_image(expanded):
    scorer, read, _, _, mean, expansion = expanded
    exact = scorer.matrix(read, mean[np.newaxis])[:, 0]
    np.testing.assert_allclose(expansion.log_probs.sum(axis=1), exact, atol=1e-4)
    np.testing.assert_allclose(expansion.bounds(mean[np.newaxis])[:, 0], exact, atol=1e-4)


def test_vectors_are_the_slope_at_the_mean_image(expanded):
    scorer, read, images, _, mean, expansion = expanded
    step = 3e-3 * (images - mean)
    change = scorer.matrix(read, mean + step) - scorer.matrix(read, mean - step)
    np.testing.assert_allclose(2 * expansion.vectors @ step.T, change, atol=1e-3)
    assert np.abs(change).max() > 0.05

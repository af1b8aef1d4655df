import numpy as np
import pytest
import searching
import tensorflow as tf


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_every_score_that_reaches_its_threshold_is_exact_and_no_other_is_given(share):
    scorer, read, images, expected = searching.searched(sentence_count=30, image_count=40)
    thresholds = np.quantile(expected, 1 - share, axis=1, keepdims=True) + 1e-4
    thresholds = np.repeat(thresholds, len(images), axis=1)
    thresholds += np.random.default_rng(0).normal(0, 0.5, thresholds.shape)  # of every pair its own
    expansion = scorer.expand_around(read, images.mean(axis=0, keepdims=True))
    found, softmax_rows = scorer.at_least(read, expansion, images, thresholds)
    found = found.numpy()
    reached = expected >= thresholds + 1e-4
    np.testing.assert_allclose(found[reached], expected[reached], atol=1e-4)
    assert (found[expected < thresholds - 1e-4] == -np.inf).all()
    assert softmax_rows <= np.count_nonzero(read.words) * len(images)


def test_little_is_scored_where_little_can_reach():
    scorer, read, images, expected = searching.searched(sentence_count=30, image_count=40)
    best = np.repeat(expected.max(axis=1, keepdims=True) - 1e-3, len(images), axis=1)
    expansion = scorer.expand_around(read, images.mean(axis=0, keepdims=True))
    _, softmax_rows = scorer.at_least(read, expansion, images, best)
    assert softmax_rows < 0.5 * np.count_nonzero(read.words) * len(images)


def test_nan_is_refused_where_a_comparison_would_drop_it_silently():
    scorer, read, images, expected = searching.searched(sentence_count=5, image_count=4)
    expansion = scorer.expand_around(read, images.mean(axis=0, keepdims=True))
    thresholds = np.full(expected.shape, -np.inf)
    bad = thresholds.copy()
    bad[2, 1] = np.nan
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"A threshold .* is NaN"):
        scorer.at_least(read, expansion, images, bad)
    images[3, 0] = np.nan
    with pytest.raises(tf.errors.InvalidArgumentError, match="an upper bound"):
        scorer.at_least(read, expansion, images, thresholds)

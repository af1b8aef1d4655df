import numpy as np
import pytest
import searching

from mrnn_tf.retrieval.exact import at_least
from mrnn_tf.retrieval.expansion import expand


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_every_score_that_reaches_its_threshold_is_exact_and_no_other_is_given(share):
    scorer, read, images, expected = searching.searched(sentence_count=30, image_count=40)
    thresholds = np.quantile(expected, 1 - share, axis=1, keepdims=True) + 1e-4
    thresholds = np.repeat(thresholds, len(images), axis=1)
    thresholds += np.random.default_rng(0).normal(0, 0.5, thresholds.shape)  # of every pair its own
    expansion = expand(scorer, read, images.mean(axis=0))
    scorer.rows = 0
    found = at_least(scorer, read, expansion, images, thresholds)
    reached = expected >= thresholds + 1e-4
    np.testing.assert_allclose(found[reached], expected[reached], atol=1e-4)
    assert (found[expected < thresholds - 1e-4] == -np.inf).all()
    assert scorer.rows <= np.count_nonzero(read.words) * len(images)


def test_little_is_scored_where_little_can_reach():
    scorer, read, images, expected = searching.searched(sentence_count=30, image_count=40)
    best = np.repeat(expected.max(axis=1, keepdims=True) - 1e-3, len(images), axis=1)
    expansion = expand(scorer, read, images.mean(axis=0))
    scorer.rows = 0
    at_least(scorer, read, expansion, images, best)
    assert scorer.rows < 0.5 * np.count_nonzero(read.words) * len(images)

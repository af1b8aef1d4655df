import numpy as np
import pytest

from mrnn_tf.metrics import ranking


def test_recall_counts_ranks_up_to_k_and_the_median_is_of_all():
    found = ranking.summary([1, 2, 5, 6, 10, 11])
    assert found == {"r_1": pytest.approx(100 / 6), "r_5": 50.0, "r_10": pytest.approx(500 / 6),
                     "median_rank": 5.5, "queries": 6}  # fmt: skip
    with pytest.raises(ValueError, match="`ranks` must hold a rank"):
        ranking.summary([])


def test_the_curve_is_the_mean_share_found_so_far():
    curve = ranking.match_curve([np.array([1, 4]), np.array([2])], [4, 4], points=4)
    assert curve == [(0.0, 0.0), (25.0, 0.25), (50.0, 0.75), (75.0, 0.75), (100.0, 1.0)]


def test_chance_is_the_diagonal():
    rng = np.random.default_rng(0)
    curve = ranking.match_curve(rng.integers(1, 101, (4000, 1)), [100] * 4000)
    np.testing.assert_allclose([100 * y for _, y in curve], [x for x, _ in curve], atol=3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0])
def test_what_is_no_rank_is_refused(bad):
    with pytest.raises(ValueError, match="`ranks` must be numbers from 1, without NaN"):
        ranking.summary([1, bad])
    with pytest.raises(ValueError, match="`ranks` must be numbers from 1, without NaN"):
        ranking.match_curve([np.array([1.0, bad])], [5])

"""What ranks are worth: recall at K, the median rank, and the curve of matches found.

A rank is 1 for the best. Where a query has several right answers, as an image has five sentences,
its rank is that of the first one found.
"""

from collections.abc import Sequence

import numpy as np

from mrnn_tf.errors import UserError

RECALLS = (1, 5, 10)


def summary(ranks: Sequence[int] | np.ndarray) -> dict[str, float]:
    """R@1, R@5, R@10 in percent, and the median rank."""
    ranks = np.asarray(ranks)
    if not len(ranks):
        raise UserError("`ranks` must hold a rank at least; it is empty.")
    _check_ranks(ranks)
    recalls = {f"r_{k}": 100.0 * float(np.mean(ranks <= k)) for k in RECALLS}
    return {**recalls, "median_rank": float(np.median(ranks)), "queries": len(ranks)}


def match_curve(
    ranks: Sequence[np.ndarray], candidates: Sequence[int] | np.ndarray, points: int = 100
) -> list[tuple[float, float]]:
    """The mean share of right answers found in the first x percent retrieved (Kiros et al.).

    Takes for every query the ranks of all its right answers, and the number of its candidates.
    """
    places = np.linspace(0.0, 1.0, points + 1)
    total = np.zeros(points + 1)
    for own, count in zip(ranks, candidates, strict=True):
        _check_ranks(own)
        shares = np.asarray(own, np.float64) / count
        total += (shares[:, np.newaxis] <= places + 1e-12).mean(axis=0)
    return [(100.0 * float(x), float(y)) for x, y in zip(places, total / len(ranks), strict=True)]


def _check_ranks(ranks: Sequence[int] | np.ndarray) -> None:
    if not (np.isfinite(ranks) & (np.asarray(ranks) >= 1)).all():
        raise UserError("`ranks` must be numbers from 1, without NaN.")

"""Exact scores of only those pairs that can matter: fewer softmax rows than pairs and words.

log P(s|I) is a sum over words whose h are known before an image is touched, so the words may be
summed in any order, and a pair may be dropped as soon as a bound says that it stays too low.
"""

import numpy as np

from mrnn_tf.retrieval.expansion import Expansion
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.sentences import Sentences

_ROUNDING = 1e-3  # of sums of float32; a bound that misses by less still counts
_PAIRS_AT_ONCE = 8192


def at_least(
    scorer: Scorer,
    sentences: Sentences,
    expansion: Expansion,
    images: np.ndarray,
    thresholds: np.ndarray,
) -> np.ndarray:
    """Every log P(s|I) [S, I] that reaches its threshold [S, I]; minus infinity for the others.

    The bound of the expansion leaves most pairs out. The words of the rest are scored one by one,
    those that surprised the mean image most first, and a pair is dropped when what is known of it
    and the bound of its other words together miss the threshold.
    """
    scores = np.full(thresholds.shape, -np.inf, np.float32)
    hopeful = expansion.bounds(images) >= thresholds - _ROUNDING
    rows, columns = np.nonzero(hopeful)
    scores[rows, columns] = pairs_at_least(
        scorer, sentences, expansion, rows, images, columns, thresholds[hopeful]
    )
    return scores


def pairs_at_least(
    scorer: Scorer,
    sentences: Sentences,
    expansion: Expansion,
    rows: np.ndarray,
    images: np.ndarray,
    columns: np.ndarray,
    thresholds: np.ndarray,
) -> np.ndarray:
    """As `at_least`, log P [P] of sentence `rows[p]` by image `columns[p]` of images a [I, M]."""
    scores = np.full(len(rows), -np.inf, np.float32)
    for first in range(0, len(rows), _PAIRS_AT_ONCE):
        at = slice(first, first + _PAIRS_AT_ONCE)
        scores[at] = _word_by_word(
            scorer, sentences, expansion, rows[at], images[columns[at]], thresholds[at]
        )
    return scores


def _word_by_word(
    scorer: Scorer,
    sentences: Sentences,
    expansion: Expansion,
    rows: np.ndarray,
    images: np.ndarray,
    least: np.ndarray,
) -> np.ndarray:
    """log P [P] of sentence `rows[p]` by image p, or minus infinity where it is below `least`."""
    order = np.argsort(expansion.log_probs, axis=1, kind="stable")  # zeros, the padding, come last
    bounds = expansion.word_bounds(rows, images)
    highest = bounds.sum(axis=1, dtype=np.float64)
    lengths, alive = sentences.lengths[rows], np.arange(len(rows))
    for step in range(sentences.words.shape[1]):
        alive = alive[highest[alive] >= least[alive] - _ROUNDING]
        unfinished = alive[lengths[alive] > step]
        if not len(unfinished):
            break
        s = rows[unfinished]
        t = order[s, step]
        gained = scorer.words(sentences.h[s, t], images[unfinished], sentences.words[s, t])
        highest[unfinished] += gained - bounds[unfinished, t]
    reached = np.full(len(rows), -np.inf)
    reached[alive] = np.where(highest[alive] >= least[alive], highest[alive], -np.inf)
    return reached

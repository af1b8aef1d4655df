"""The best images of a sentence and the best sentences of an image, among many.

The search is two-stage: inner products (see `expansion`) choose a shortlist, exact scores decide.
The scores of the first few tell how much is needed to be among the best; of the other images only
those are scored that can reach it. With `shortlist=None` these are not the listed but all: the
search is exact.
"""

from typing import NamedTuple

import numpy as np

from mrnn_tf import schema
from mrnn_tf.retrieval.exact import at_least, pairs_at_least
from mrnn_tf.retrieval.expansion import expand
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.sentences import read

BY_COUNT = 0  # a shortlist of `shortlist_size`
_ROUNDING = 1e-3  # between two ways to one score
_SENTENCES_AT_ONCE = 128


class Found(NamedTuple):
    """The best items of every query, best first; -1 and minus infinity where there are fewer."""

    rows: np.ndarray  # int [Q, k]
    scores: np.ndarray  # float [Q, k]


def shortlist_size(items: int) -> int:
    """How many of the items hold 99 % of the exact ten: benchmarks/retrieval.py."""
    return max(200, round(4 * items**0.5))


def search_images(
    scorer: Scorer,
    words: np.ndarray,
    images: np.ndarray,
    mean: np.ndarray,
    k: int = 10,
    shortlist: int | None = BY_COUNT,
) -> Found:
    """The images with the highest log P(s|I).

    Args:
        scorer: Scorer.
        words: int [Q, T]. The queries, as `sentences.pad` makes them. One without a word of the
            vocabulary asks for nothing and finds nothing.
        images: float [I, M]. V_I I of the images.
        mean: float [M]. That of the mean image.
        k: int. Images of a query.
        shortlist: int. Images among which exact scores decide, `BY_COUNT` for as many as are
            needed, or `None` for the exact best of all.
    """
    found = [_nothing(0, k)]
    for first in range(0, len(words), _SENTENCES_AT_ONCE):
        some = read(scorer.model, words[first : first + _SENTENCES_AT_ONCE])
        expansion = expand(scorer, some, mean)
        # The part of the mean image is the same for all.
        listed = _best(expansion.vectors @ images.T, _listed(shortlist, k, images)).rows
        few, others = listed[:, : 3 * k], listed[:, 3 * k :]
        scores = _score_listed(scorer, some, images, few)
        least = _kth(scores, few, k)
        if shortlist is None:
            thresholds = np.repeat(least[:, np.newaxis], len(images), axis=1)
            np.put_along_axis(thresholds, few, np.inf, axis=1)  # they are known
            every = at_least(scorer, some, expansion, images, thresholds)
            np.put_along_axis(every, few, scores, axis=1)
            best = _best(every, k)
        else:
            rows = np.repeat(np.arange(len(others)), others.shape[1])
            more = pairs_at_least(
                scorer, some, expansion, rows, images, others.ravel(), least[rows]
            )
            scores = np.concatenate([scores, more.reshape(others.shape)], axis=1)
            best = _of_listed(listed, scores, k)
        asks = ((some.words != schema.UNKNOWN_ID) & (some.words > schema.END_ID)).any(axis=1)
        found.append(_where(asks, best))
    return _join(found)


class SentenceTable(NamedTuple):
    """Sentences to be found: what an index stores of them."""

    words: np.ndarray  # int [S, T]
    vectors: np.ndarray  # float [S, M], v_s
    at_mean: np.ndarray  # float [S], log P(s|mean image)
    marginals: np.ndarray  # float [S], log P(s)


def search_sentences(
    scorer: Scorer,
    table: SentenceTable,
    images: np.ndarray,
    mean: np.ndarray,
    k: int = 10,
    shortlist: int | None = BY_COUNT,
) -> Found:
    """The sentences with the highest log P(s|I) - log P(s) of every image [Q, M].

    The exact search reads and expands every sentence: it pays for many images together.
    """
    estimates = (table.at_mean - table.marginals) + (images - mean) @ table.vectors.T
    listed = _best(estimates, _listed(shortlist, k, table.words)).rows
    scores = np.empty(listed.shape)
    for query, rows in enumerate(listed):
        some = read(scorer.model, table.words[rows])
        own = np.arange(len(rows))
        log_probs = scorer.pairs(some, own, images, np.full(len(rows), query))
        scores[query] = log_probs - table.marginals[rows]
    if shortlist is not None:
        return _of_listed(listed, scores, k)
    least = _kth(scores, listed, k)
    best = _nothing(len(images), k)
    for first in range(0, len(table.words), _SENTENCES_AT_ONCE):
        at = slice(first, first + _SENTENCES_AT_ONCE)
        some = read(scorer.model, table.words[at])
        offsets = table.marginals[at][:, np.newaxis]
        found = at_least(
            scorer, some, expand(scorer, some, mean), images, least[np.newaxis] + offsets
        )
        rows = np.repeat(np.arange(first, first + len(some))[np.newaxis], len(images), axis=0)
        both = [np.concatenate(pair, axis=1)
                for pair in ((best.rows, rows), (best.scores, (found - offsets).T))]  # fmt: skip
        best = _of_listed(*both, k)
    return best


def _listed(shortlist: int | None, k: int, items: np.ndarray) -> int:
    size = 3 * k if shortlist is None else shortlist or shortlist_size(len(items))
    return min(size, len(items))


def _score_listed(scorer, sentences, images, listed) -> np.ndarray:
    """log P [Q, L] of every query by the images of its list."""
    queries = np.repeat(np.arange(len(listed)), listed.shape[1])
    return scorer.pairs(sentences, queries, images, listed.ravel()).reshape(listed.shape)


def _best(scores: np.ndarray, k: int) -> Found:
    """The k highest scores of every row, best first; equal ones in their order."""
    count = min(k, scores.shape[1])
    rows = np.argpartition(-scores, count - 1, axis=1)[:, :count] if count else scores[:, :0]
    rows = np.sort(rows.astype(np.int64), axis=1)
    return _of_listed(rows, np.take_along_axis(scores, rows, axis=1), k)


def _of_listed(rows: np.ndarray, scores: np.ndarray, k: int) -> Found:
    """The k best of the listed rows [Q, L] by their scores [Q, L]."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    scores = np.take_along_axis(scores, order, axis=1)
    rows = np.where(scores > -np.inf, np.take_along_axis(rows, order, axis=1), -1)
    missing = [(0, 0), (0, k - order.shape[1])]
    return Found(
        np.pad(rows, missing, constant_values=-1), np.pad(scores, missing, constant_values=-np.inf)
    )


def _kth(scores: np.ndarray, listed: np.ndarray, k: int) -> np.ndarray:
    """What the k-th best reaches [Q] in any case; minus infinity where fewer are listed."""
    return _of_listed(listed, scores, k).scores[:, -1] - _ROUNDING


def _where(kept: np.ndarray, found: Found) -> Found:
    none = _nothing(len(kept), found.rows.shape[1])
    kept = kept[:, np.newaxis]
    return Found(np.where(kept, found.rows, none.rows), np.where(kept, found.scores, none.scores))


def _nothing(queries: int, k: int) -> Found:
    return Found(np.full((queries, k), -1), np.full((queries, k), -np.inf))


def _join(parts: list[Found]) -> Found:
    return Found(*(np.concatenate(each) for each in zip(*parts, strict=True)))

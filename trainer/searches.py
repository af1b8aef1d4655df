"""A few searches of a pool, to look at."""

import dataclasses

import numpy as np

from mrnn_tf.retrieval import search
from mrnn_tf.retrieval.expansion import expand
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.sentences import read
from trainer.pool import Pool

_QUERIES, _BEST = 6, 3  # searches in each direction, and results of each
_AMONG = 100  # images whose sentences are searched

Search = tuple[str, list[tuple[str, float, bool]]]  # a query; what was found, its score, right?


@dataclasses.dataclass(frozen=True)
class Searches:
    """Searches in both directions."""

    images: list[Search]
    sentences: list[Search]


def search_some(scorer: Scorer, pool: Pool, mean: np.ndarray, norm: np.ndarray) -> Searches:
    """Searches by sentences and images from all over the pool."""
    chosen = np.unique(np.linspace(0, len(pool.owner) - 1, _QUERIES).astype(int))
    found = search.search_images(scorer, pool.words[chosen], pool.images, mean, _BEST)
    images = [
        (pool.texts[query], [(pool.ids[i], score, i == pool.owner[query]) for i, score in best])
        for query, best in zip(chosen, map(_there, *found), strict=True)
    ]
    queries = np.unique(pool.owner[chosen])
    # The sentences of some images are enough to show; those of all were ranked above.
    among = np.flatnonzero(pool.owner < _AMONG)
    among = np.union1d(among, np.flatnonzero(np.isin(pool.owner, queries)))
    expansion = expand(scorer, read(scorer.model, pool.words[among]), mean)
    table = search.SentenceTable(
        pool.words[among], expansion.vectors, expansion.log_probs.sum(axis=1), norm[among]
    )
    found = search.search_sentences(scorer, table, pool.images[queries], mean, _BEST)
    sentences = [
        (pool.ids[image], [(pool.texts[among[s]], score, pool.owner[among[s]] == image)
                            for s, score in best])
        for image, best in zip(queries, map(_there, *found), strict=True)
    ]  # fmt: skip
    return Searches(images, sentences)


def _there(rows: np.ndarray, scores: np.ndarray) -> list[tuple[int, float]]:
    return [(int(r), float(s)) for r, s in zip(rows, scores, strict=True) if r >= 0]

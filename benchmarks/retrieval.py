"""The speed of scoring and search, side by side with bare matrix products and every pair.

    python benchmarks/retrieval.py --job_dir runs/best --data data/flickr8k

Needs a trained run: how much can be left out depends on what the network has learned. Images beyond
those of the split are resampled: mixtures of two images of one split, projected anew. Queries are
captions of the validation split. Sides run in turns in one process with all threads and the best
block size of the baselines; the best round counts.

- Scoring: softmax rows per second of log P(s|I) to the matrix products of the same shapes.
- Two-stage search for the ten best images to scoring every pair, with its recall of the exact ten.
- Exact search, which finds the same ten, to scoring every pair.
- How both grow with the number of images.
- The recall of the exact ten sentences of images, in the other direction.
"""

import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl import app, flags

from mrnn_tf.retrieval import scoring
from mrnn_tf.retrieval.expansion import expand
from mrnn_tf.retrieval.marginal import log_marginals
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.search import (
    Found,
    SentenceTable,
    search_images,
    search_sentences,
    shortlist_size,
)
from mrnn_tf.retrieval.sentences import blocks, read
from mrnn_tf.run import Run
from trainer import pool

_JOB_DIR = flags.DEFINE_string("job_dir", None, "A trained run.", required=True)
_DATA = flags.DEFINE_string("data", None, "Its records.", required=True)
_QUERIES = flags.DEFINE_integer("queries", 20, "Sentences that are searched for.")
_RECALL_QUERIES = flags.DEFINE_integer("recall_queries", 200, "Sentences that recall is taken of.")
_COUNTS = flags.DEFINE_list("counts", ["1000", "10000", "100000"], "Numbers of images.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Rounds of each side; the best counts.")
_K = 10
_BLOCKS = (512, 1024, 2048, 4096)


def main(_) -> None:
    run = Run.load(_JOB_DIR.value)
    scorer = Scorer(run.network.model)
    everything = pool.load(run, scorer, run.source(_DATA.value, "val"))
    sample = pool.sampled_images(run, scorer, _DATA.value, 200, 0)
    mean = sample.mean(axis=0)
    chosen = np.random.default_rng(0).permutation(len(everything.words))
    _score(scorer, everything, chosen[: _QUERIES.value])
    counts = [int(count) for count in _COUNTS.value]
    for count in counts:
        images = _resampled(scorer, everything.features, count)
        if count == counts[0]:
            queries = everything.words[chosen[: _QUERIES.value]]
            scoring.ROWS = _best_block(scorer, queries, images[:1000])
        _search(scorer, everything.words, chosen, images, mean)
    _search_sentences(scorer, everything, sample)


def _score(scorer: Scorer, everything: pool.Pool, chosen: np.ndarray) -> None:
    """Rows per second of scoring to those of the products alone."""
    read_ = read(scorer.model, everything.words[chosen])
    images = everything.images[:1000]
    scorer.rows = 0
    scorer.matrix(read_, images)
    rows, size = scorer.rows, scorer.kernel.shape[0]
    kernel = tf.convert_to_tensor(scorer.kernel)
    product = tf.function(lambda block: tf.reduce_max(tf.matmul(block, kernel)[:, 0]))

    def bare(block: int) -> None:
        values = tf.zeros([block, size])
        for _ in range(rows // block):
            product(values)

    block = min(_BLOCKS, key=lambda block: _seconds(lambda: bare(block)))
    ours, theirs = _sides(lambda: scorer.matrix(read_, images), lambda: bare(block))
    print(
        f"scoring: {rows / ours:,.0f} rows a second, {theirs / ours:.2f} of the bare products "
        f"in blocks of {block}"
    )


def _best_block(scorer: Scorer, queries: np.ndarray, images: np.ndarray) -> int:
    """The block size that scores every pair fastest."""
    sentences = read(scorer.model, queries)

    def seconds(block: int) -> float:
        scoring.ROWS = block
        return _seconds(lambda: scorer.matrix(sentences, images))

    return min(_BLOCKS, key=seconds)


def _search(scorer: Scorer, words: np.ndarray, chosen: np.ndarray, images, mean) -> None:
    queries = words[chosen[: max(1, _QUERIES.value * 1000 // max(1000, len(images)))]]

    def every_pair() -> np.ndarray:
        scores = scorer.matrix(read(scorer.model, queries), images)
        best = np.argpartition(-scores, _K, axis=1)[:, :_K]
        own = np.take_along_axis(scores, best, axis=1)
        return np.take_along_axis(best, np.argsort(-own, axis=1), axis=1)

    expected = every_pair()
    pairs, two_stage, exact = _sides(
        every_pair,
        lambda: search_images(scorer, queries, images, mean, _K),
        lambda: search_images(scorer, queries, images, mean, _K, None),
    )
    scorer.rows = 0
    found = search_images(scorer, queries, images, mean, _K, None)
    share = scorer.rows / (np.count_nonzero(queries) * len(images))
    print(
        f"{len(images):,} images, {len(queries)} queries, every pair "
        f"{1e3 * pairs / len(queries):,.0f} ms a query: two-stage {pairs / two_stage:.1f} times "
        f"as fast; exact {pairs / exact:.1f} times, with {share:.3f} of the softmax rows and "
        f"{np.mean(found.rows == expected):.1%} of the ten the same"
    )
    many = words[chosen[: _RECALL_QUERIES.value]]
    _recall(lambda listed: search_images(scorer, many, images, mean, _K, listed), len(images))


def _search_sentences(scorer: Scorer, everything: pool.Pool, sample: np.ndarray) -> None:
    """The recall of the best sentences of images."""
    words, mean = everything.words, sample.mean(axis=0)
    vectors = np.zeros((len(words), len(mean)), np.float32)
    at_mean, marginals = np.zeros(len(words), np.float32), np.zeros(len(words))
    for rows in blocks(words, 128):
        some = read(scorer.model, words[rows])
        expansion = expand(scorer, some, mean)
        vectors[rows], at_mean[rows] = expansion.vectors, expansion.log_probs.sum(axis=1)
        marginals[rows] = log_marginals(scorer, some, expansion, sample)
    table = SentenceTable(words, vectors, at_mean, marginals)
    images = everything.images[: _RECALL_QUERIES.value]
    print(f"{len(table.words):,} sentences, {len(images)} images")
    _recall(
        lambda listed: search_sentences(scorer, table, images, mean, _K, listed), len(table.words)
    )


def _recall(search: Callable[[int | None], Found], items: int) -> None:
    """How many of the exact ten shortlists of several lengths hold."""
    best = search(None).rows
    for shortlist in sorted({100, 200, 400, shortlist_size(items)}):
        listed = search(shortlist).rows
        recall = np.mean([len({*a} & {*b}) / _K for a, b in zip(best, listed, strict=True)])
        print(f"  {recall:.1%} of the exact ten in a shortlist of {shortlist}, {len(best)} queries")


def _resampled(scorer: Scorer, features: np.ndarray, count: int) -> np.ndarray:
    """The images themselves and mixtures of two of them, projected."""
    if count <= len(features):
        return scorer.project(features[:count])
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, len(features), (count - len(features), 2))
    share = rng.uniform(0.2, 0.8, (len(pairs), 1)).astype(np.float32)
    parts = [scorer.project(features)]
    for first in range(0, len(pairs), 4096):
        at = slice(first, first + 4096)
        mixed = share[at] * features[pairs[at, 0]] + (1 - share[at]) * features[pairs[at, 1]]
        parts.append(scorer.project(mixed))
    return np.concatenate(parts)


def _sides(*sides: Callable[[], object]) -> list[float]:
    """The best seconds of every side, rounds in turns."""
    rounds = [[_seconds(side) for side in sides] for _ in range(_ROUNDS.value)]
    return [min(times) for times in zip(*rounds, strict=True)]


def _seconds(side: Callable[[], object]) -> float:
    begin = time.perf_counter()
    side()
    return time.perf_counter() - begin


if __name__ == "__main__":
    app.run(main)

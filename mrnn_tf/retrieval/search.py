"""The best images of a sentence and the best sentences of an image, among many.

The search is two-stage: inner products (see `expansion`) choose a shortlist, exact scores decide.
The scores of the first few say how much is needed to be among the best; of the other images only
those are scored that can reach it. With `shortlist=None` these are not the listed but all: the
search is exact. The library and the servable of an index run the same graph.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.errors import UserError
from mrnn_tf.model.layers import scaled_tanh
from mrnn_tf.retrieval.marginal import log_marginals
from mrnn_tf.retrieval.scoring import ROUNDING, Scorer
from mrnn_tf.retrieval.softmax import in_blocks

BY_COUNT = 0  # a shortlist of `shortlist_size`
NOTHING = -1  # the row of a missing result
_FEW = 3  # times k: what is scored first
_SENTENCES_AT_ONCE = 128


class Hits(NamedTuple):
    """The best items of every query, best first."""

    rows: tf.Tensor  # int32 [Q, k], `NOTHING` where there are fewer
    scores: tf.Tensor  # float32 [Q, k], minus infinity where there are fewer
    softmax_rows: tf.Tensor  # int32 scalar, what the search cost


class SentenceTable(NamedTuple):
    """Sentences to be found: what an index stores of them."""

    words: np.ndarray  # int [S, T]
    vectors: np.ndarray  # float [S, M], v_s
    at_mean: np.ndarray  # float [S], log P(s|mean image)
    marginals: np.ndarray  # float [S], log P(s)

    @classmethod
    def of(cls, scorer: Scorer, words: np.ndarray, sample: np.ndarray) -> "SentenceTable":
        """The table of sentences int [S, T], with P(s) over the sampled images [n, M]."""
        size, mean = len(words), sample.mean(axis=0)
        table = cls(
            words,
            np.zeros((size, len(mean)), np.float32),
            np.zeros(size, np.float32),
            np.zeros(size),
        )
        for first in range(0, size, 8 * _SENTENCES_AT_ONCE):
            rows = slice(first, first + 8 * _SENTENCES_AT_ONCE)
            expansion = scorer.expand(scorer.read(words[rows]), mean)
            table.vectors[rows] = expansion.vectors
            table.at_mean[rows] = tf.reduce_sum(expansion.log_probs, axis=1)
            table.marginals[rows] = log_marginals(scorer, expansion, sample)
        return table


def shortlist_size(items: int) -> int:
    """How many of the items hold 99 % of the exact ten: benchmarks/retrieval.py."""
    return max(200, round(4 * items**0.5))


def listed(items: int, k: int, shortlist: int | None) -> int:
    """How many items get an exact score whatever the bounds say of the others."""
    size = _FEW * k if shortlist is None else max(k, shortlist or shortlist_size(items))
    return min(size, items)


class Searcher:
    """Searches among images and among sentences.

    Args:
        scorer: Scorer.
        mean: float [M]. The mean image, projected.
        images: float [I, M]. V_I I of the images.
        table: SentenceTable; `None` where no sentences are searched for.

    Attributes:
        arrays: dict of the variables that the search reads beside the model's; a SavedModel must
            own them.

    Example:

        searcher = Searcher(Scorer(model), images.mean(axis=0), images)
        hits = searcher.search_images(sentences.pad(vocabulary.ids(["a dog"]).to_list()), k=5)
        hits.rows[0]  # of the five best images
    """

    def __init__(
        self,
        scorer: Scorer,
        mean: np.ndarray,
        images: np.ndarray,
        table: SentenceTable | None = None,
    ):
        self.scorer = scorer
        arrays = {"mean": mean, "images": images, "kernel": scorer.readout.kernel.numpy()}
        if table is not None:
            arrays |= table._asdict()
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                raise UserError(
                    f"`{name}` must be finite to be searched; it holds NaN or infinity."
                )
        self.arrays = {**scorer.arrays, "mean": _variable(mean), "images": _variable(images)}
        if table is not None:
            self.arrays |= {name: _variable(getattr(table, name)) for name in ("words", "vectors")}
            self.arrays["marginals"] = _variable(table.marginals)
            self.arrays["priors"] = _variable(table.at_mean - table.marginals)

    @tf.function(reduce_retracing=True)
    def search_images(
        self, words: tf.Tensor, k: int = 10, shortlist: int | None = BY_COUNT
    ) -> Hits:
        """The images with the highest log P(s|I).

        Args:
            words: int [Q, T]. The queries, as `sentences.pad` makes them. One without a word of
                the vocabulary finds nothing.
            k: int. Images of a query.
            shortlist: int. Images among which exact scores decide, `BY_COUNT` for as many as are
                needed, or `None` for the exact best of all.
        """
        words, images = tf.cast(words, tf.int32), self.arrays["images"]
        if not images.shape[0]:
            return Hits(*_nothing(tf.shape(words)[0], k), tf.constant(0))
        count = listed(images.shape[0], k, shortlist)
        few = min(_FEW * k, count)

        def search(queries: tf.Tensor) -> Hits:
            sentences = self.scorer.read(tf.gather(words, queries))
            expansion = self.scorer.expand(sentences, self.arrays["mean"])
            # The part of the mean image is the same for all.
            estimates = tf.matmul(expansion.vectors, images, transpose_b=True)
            near = _highest(estimates, count)
            row = tf.range(tf.shape(near)[0])[:, tf.newaxis]

            first = near[:, :few]
            scores = self.scorer.pairs(
                sentences, _spread(row, first), images, tf.reshape(first, [-1])
            )
            scores = tf.reshape(scores, tf.shape(first))
            least = _kth(scores, k)
            if shortlist is None:
                known = tf.stack([tf.repeat(row, few, axis=1), first], axis=-1)
                thresholds = tf.repeat(least[:, tf.newaxis], images.shape[0], axis=1)
                thresholds = tf.tensor_scatter_nd_update(
                    thresholds, known, tf.fill(tf.shape(first), np.inf)
                )
                others, used = self.scorer.at_least(expansion, images, thresholds)
                scores = tf.tensor_scatter_nd_update(others, known, scores)
                near = tf.repeat(tf.range(images.shape[0])[tf.newaxis], tf.size(row), axis=0)
            else:
                rest = near[:, few:]
                rows = _spread(row, rest)
                others, used = self.scorer.pairs_at_least(
                    expansion, rows, images, tf.reshape(rest, [-1]), tf.gather(least, rows)
                )
                scores = tf.concat([scores, tf.reshape(others, tf.shape(rest))], axis=1)
            length = tf.math.count_nonzero(sentences.words, dtype=tf.int32)
            return Hits(*_best(near, scores, k), used + (1 + few) * length)

        asks = tf.reduce_any(words > schema.UNKNOWN_ID, axis=1)
        return _answer(search, asks, k, _SENTENCES_AT_ONCE)

    @tf.function(reduce_retracing=True)
    def search_sentences(
        self, images: tf.Tensor, k: int = 10, shortlist: int | None = BY_COUNT
    ) -> Hits:
        """The sentences with the highest log P(s|I) - log P(s) of every image a [Q, M].

        The exact search reads and expands every sentence: it pays for many images together. A
        query that is not finite finds nothing.
        """
        scorer, arrays = self.scorer, self.arrays
        items = arrays["words"].shape[0]
        if not items:
            return Hits(*_nothing(tf.shape(images)[0], k), tf.constant(0))
        count = listed(items, k, shortlist)

        def search_listed(query: tf.Tensor) -> Hits:
            image = tf.gather(images, query)  # of one query
            told = tf.matmul(image - arrays["mean"], arrays["vectors"], transpose_b=True)
            near = _highest(arrays["priors"] + told, count)
            sentences = scorer.read(tf.gather(arrays["words"], near[0]))
            zeros = tf.zeros([count], tf.int32)
            scores = scorer.pairs(sentences, tf.range(count), image, zeros)
            scores -= tf.gather(arrays["marginals"], near[0])
            used = tf.math.count_nonzero(sentences.words, dtype=tf.int32)
            return Hits(*_best(near, scores[tf.newaxis], k), used)

        asks = tf.reduce_all(tf.math.is_finite(images), axis=1)
        first = _answer(search_listed, asks, k, 1)
        if shortlist is not None:
            return first

        def search_all(queries: tf.Tensor) -> Hits:
            own, least = tf.gather(images, queries), _kth(tf.gather(first.scores, queries), k)

            def more(begin, rows, scores, used):
                block = tf.range(begin, tf.minimum(begin + _SENTENCES_AT_ONCE, items))
                sentences = scorer.read(tf.gather(arrays["words"], block))
                expansion = scorer.expand(sentences, arrays["mean"])
                marginals = tf.gather(arrays["marginals"], block)[:, tf.newaxis]
                log_probs, taken = scorer.at_least(expansion, own, least + marginals)
                block_rows = tf.repeat(block[tf.newaxis], tf.size(queries), axis=0)
                best = _best(
                    tf.concat([rows, block_rows], axis=1),
                    tf.concat([scores, tf.transpose(log_probs - marginals)], axis=1),
                    k,
                )
                taken += tf.math.count_nonzero(sentences.words, dtype=tf.int32)
                return begin + _SENTENCES_AT_ONCE, *best, used + taken

            _, *hits = tf.while_loop(
                lambda begin, *_: begin < items,
                more,
                (0, *_nothing(tf.size(queries), k), 0),
                parallel_iterations=1,
            )
            return Hits(*hits)

        hits = _answer(search_all, asks, k, tf.maximum(1, tf.size(asks)))
        return hits._replace(softmax_rows=hits.softmax_rows + first.softmax_rows)


class SimilarImages:
    """Searches for the nearest images by refined features, g2(V_I I).

    Args:
        images: float [I, M]. V_I I of the images.

    Attributes:
        arrays: as of `Searcher`.
    """

    def __init__(self, images: np.ndarray):
        refined = scaled_tanh(images).numpy()
        squares = np.einsum("im,im->i", refined, refined)
        self.arrays = {"refined": _variable(refined), "refined_squares": _variable(squares)}

    @tf.function(reduce_retracing=True)
    def search(self, images: tf.Tensor, k: int = 10, shortlist: int = BY_COUNT) -> Hits:
        """The nearest of every image a [Q, M]; the score is minus the Euclidean distance."""
        refined, squares = self.arrays["refined"], self.arrays["refined_squares"]
        asks = tf.reduce_all(tf.math.is_finite(images), axis=1)
        if not refined.shape[0]:
            return Hits(*_nothing(tf.size(asks), k), tf.constant(0))

        def search(query: tf.Tensor) -> Hits:
            own = scaled_tanh(tf.gather(images, query))  # of one query
            nearness = 2 * tf.matmul(own, refined, transpose_b=True) - squares
            near = _highest(nearness, listed(refined.shape[0], k, shortlist))
            near = tf.sort(near)  # equally near ones by their number
            # Not from the product, which is not exact for what lies near.
            distances = tf.norm(tf.gather(refined, near) - own[:, tf.newaxis], axis=-1)
            return Hits(*_best(near, -distances, k), tf.constant(0))

        return _answer(search, asks, k, 1)


def _answer(
    search: Callable[[tf.Tensor], Hits], asks: tf.Tensor, k: int, at_once: int | tf.Tensor
) -> Hits:
    """The hits of the queries that ask [Q] for something, `at_once` of them together."""
    asked = tf.where(asks)

    def search_block(numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        hits = search(tf.gather(asked[:, 0], numbers))
        return hits.rows, hits.scores, hits.softmax_rows[tf.newaxis]

    specs = (
        tf.TensorSpec([None, k], tf.int32),
        tf.TensorSpec([None, k]),
        tf.TensorSpec([None], tf.int32),
    )
    *hits, used = in_blocks(search_block, tf.shape(asked)[0], specs, at_once)
    hits = [
        tf.tensor_scatter_nd_update(missing, asked, values)
        for missing, values in zip(_nothing(tf.size(asks), k), hits, strict=True)
    ]
    return Hits(*hits, tf.reduce_sum(used))


def _highest(estimates: tf.Tensor, count: int) -> tf.Tensor:
    """The rows [Q, count] of the highest estimates [Q, items]; of equal ones the first."""
    estimates = tf.debugging.check_numerics(estimates, "an estimate of log P(s|I)")
    return tf.math.top_k(estimates, count).indices


def _best(rows: tf.Tensor, scores: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The k best of the rows [Q, L] by their scores [Q, L], best first, padded."""
    scores, order = tf.math.top_k(scores, tf.minimum(k, tf.shape(scores)[1]))
    rows = tf.where(scores > -np.inf, tf.gather(rows, order, batch_dims=1), NOTHING)
    padding = [[0, 0], [0, k - tf.shape(scores)[1]]]
    rows = tf.pad(rows, padding, constant_values=NOTHING)
    scores = tf.pad(scores, padding, constant_values=-np.inf)
    return tf.ensure_shape(rows, [None, k]), tf.ensure_shape(scores, [None, k])


def _kth(scores: tf.Tensor, k: int) -> tf.Tensor:
    """What the k-th best reaches [Q] in any case; minus infinity where there are fewer."""
    _, best = _best(tf.zeros_like(scores, tf.int32), scores, k)
    return best[:, -1] - ROUNDING


def _spread(row: tf.Tensor, listed_rows: tf.Tensor) -> tf.Tensor:
    """The query [Q * L] of every listed item [Q, L]."""
    return tf.repeat(row[:, 0], tf.shape(listed_rows)[1])


def _nothing(queries: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.fill([queries, k], NOTHING), tf.fill([queries, k], -np.inf)


def _variable(array: np.ndarray) -> tf.Variable:
    array = np.asarray(array)
    kind = np.int32 if array.dtype.kind == "i" else np.float32
    return tf.Variable(array.astype(kind, copy=False), trainable=False)

"""The best images of a sentence and the best sentences of an image, among many.

The search is two-stage: estimates choose a shortlist, exact scores decide. Images are estimated by
inner products of their sketches at the nearest centre (see `centres`), and the best of these again
by their likely words; sentences at the mean image (see `expansion`). Then upper bounds say which
candidates to score first, and of the others only those are scored that can still win: the best of
what the estimates kept are found for certain. With `shortlist=None` all images or sentences are
bounded: the search is exact. The library and the servable of an index run the same graph.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.errors import UserError
from mrnn_tf.retrieval import expansion as expansions
from mrnn_tf.retrieval.centres import Centres, Lists
from mrnn_tf.retrieval.expansion import LocalExpansion
from mrnn_tf.retrieval.marginal import log_marginals
from mrnn_tf.retrieval.scoring import ROUNDING, Scorer
from mrnn_tf.retrieval.sentences import EncodedSentences
from mrnn_tf.retrieval.softmax import in_blocks

BY_COUNT = 0  # a shortlist of `shortlist_size`
NOTHING = -1  # the row of a missing result
_WORDS_AT_ONCE = 320  # of queries that are searched for together
_KEPT = 128  # of a shortlist, at least; of a longer one an eighth
_SENTENCES_AT_ONCE = 128
_CAST_AT_ONCE = 8192  # vectors; they stay in the processor's cache
_COPIED_AT_ONCE = 8192  # rows of an array


class Hits(NamedTuple):
    """The best items of every query, best first."""

    rows: tf.Tensor  # int32 [Q, k], `NOTHING` where there are fewer
    scores: tf.Tensor  # float32 [Q, k], minus infinity where there are fewer
    softmax_rows: tf.Tensor  # int32 scalar, what the search cost

    def found(self) -> list[list[tuple[int, float]]]:
        """The rows and scores of what every query found, without what is missing."""
        queries = zip(self.rows.numpy().tolist(), self.scores.numpy().tolist(), strict=True)
        return [[hit for hit in zip(*query, strict=True) if hit[0] != NOTHING] for query in queries]


class SentenceTable(NamedTuple):
    """Sentences to be found: what an index stores of them."""

    words: np.ndarray  # int [S, T]
    vectors: np.ndarray  # float [S, M], v_s
    at_mean: np.ndarray  # float [S], log P(s|mean image)
    marginals: np.ndarray  # float [S], log P(s)

    @classmethod
    def of(
        cls,
        scorer: Scorer,
        words: np.ndarray,
        sample: np.ndarray,
        done: Callable[[int], None] = lambda sentences: None,
    ) -> "SentenceTable":
        """The table of sentences int [S, T], with P(s) over the sampled images [n, M].

        `done` gets the number of sentences of every block.
        """
        at_once, parts = 8 * _SENTENCES_AT_ONCE, []
        for block in np.array_split(words, range(at_once, len(words), at_once)):
            expansion = scorer.expand(scorer.read(block), sample.mean(axis=0))
            at_mean = tf.reduce_sum(expansion.log_probs, axis=1)
            marginals = log_marginals(scorer, expansion, sample)
            parts.append((block, expansion.vectors, at_mean, marginals))
            done(len(block))
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


def shortlist_size(sentences: int) -> int:
    """How many of the sentences hold 99 % of the exact ten: benchmarks/retrieval.py."""
    return max(200, round(4 * sentences**0.5))


def image_shortlist(images: int) -> int:
    """How many of the images hold 99 % of the exact ten: benchmarks/shortlists.py."""
    return max(200, round(images**0.9 / 40))


def listed(
    items: int, k: int, shortlist: int | None, size: Callable[[int], int] = shortlist_size
) -> int:
    """How many items are candidates: `shortlist`, or as many as their number asks for."""
    return min(max(k, shortlist or size(items)), items)


class Searcher:
    """Searches among images and among sentences.

    Args:
        centres: those of the training images.
        images: float [I, M]. V_I I of the images.
        table: `None` where no sentences are searched for. Vectors of 16 bits are kept so.

    Attributes:
        arrays: the variables beside the model's, which a SavedModel must own.

    Example:

        searcher = Searcher(Scorer(model), Centres.of(sample), images)
        hits = searcher.search_images(sentences.pad(vocabulary.ids(["a dog"]).to_list()), k=5)
        hits.rows[0]  # of the five best images
    """

    def __init__(
        self,
        scorer: Scorer,
        centres: Centres,
        images: np.ndarray,
        table: SentenceTable | None = None,
    ):
        self.scorer = scorer
        arrays = {**centres._asdict(), "images": images, **(table._asdict() if table else {})}
        for name, array in {**arrays, "kernel": scorer.readout.kernel.numpy()}.items():
            if not np.isfinite(array).all():
                raise UserError(f"`{name}` must be finite to be searched, without NaN or infinity.")
        if table:
            arrays["priors"] = arrays.pop("at_mean") - table.marginals
        lists = Lists.of(centres, images)
        arrays |= {"sketches": lists.sketches, "rows": lists.rows}
        self._ends = lists.ends.tolist()
        self.arrays = scorer.arrays | {name: _variable(array) for name, array in arrays.items()}

    @tf.function(autograph=False, reduce_retracing=True)
    def search_images(
        self, words: tf.Tensor, k: int = 10, shortlist: int | None = BY_COUNT
    ) -> Hits:
        """The k images with the highest log P(s|I) of every query int [Q, T].

        A query without a word of the vocabulary finds nothing. Exact scores decide among the
        `shortlist` nearest candidates: `BY_COUNT` chooses their number, `None` takes all images.
        """
        words, images = tf.cast(words, tf.int32), _dense(self.arrays["images"])
        asks = tf.reduce_any(words > schema.UNKNOWN_ID, axis=1) & (images.shape[0] > 0)
        at_once = tf.maximum(1, _WORDS_AT_ONCE // tf.maximum(1, tf.shape(words)[1]))
        if shortlist is None:
            first = self.search_images(words, k)  # traced once for both

            def search_all(queries: tf.Tensor) -> Hits:
                least = tf.gather(first.scores, queries)[:, -1]
                return self._score_all(*self._expand(tf.gather(words, queries)), least, k)

            hits = _answer(search_all, asks, k, at_once)
            return hits._replace(softmax_rows=hits.softmax_rows + first.softmax_rows)
        count = listed(images.shape[0], k, shortlist, image_shortlist)

        def search(queries: tf.Tensor) -> Hits:
            sentences, expansion = self._expand(tf.gather(words, queries))
            rows, scores = self._score(sentences, expansion, self._near(expansion, count), k)
            used = tf.math.count_nonzero(scores > -np.inf, axis=1, dtype=tf.int32)
            return Hits(*_best(rows, scores, k), self._cost(sentences, used))

        return _answer(search, asks, k, at_once)

    def _expand(self, words: tf.Tensor) -> tuple[EncodedSentences, LocalExpansion]:
        """Sentences [S, T], read, and expanded at the centres."""
        sentences = self.scorer.read(words)
        return sentences, self.scorer.expand_around(sentences, self.arrays["points"])

    def _cost(self, sentences: EncodedSentences, scored: tf.Tensor) -> tf.Tensor:
        """The softmax rows [S] of sentences by `scored` [S] images and at the centres."""
        lengths = tf.math.count_nonzero(sentences.words, axis=1, dtype=tf.int32)
        return (scored + len(self._ends)) * lengths

    def _score(
        self, sentences: EncodedSentences, expansion: LocalExpansion, near: tf.Tensor, k: int
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Of candidates by their places in the lists [Q, P] those that can win: rows and scores.

        The best by a second estimate stay. Bounds say which of them are scored first, and the
        scores of these how much is needed to be among the k best; the score of the others is minus
        infinity.
        """
        arrays, images = self.arrays, _dense(self.arrays["images"])
        line = arrays["mean"], arrays["axes"]
        estimates = expansions.estimates(expansion, _dense(arrays["sketches"]), near, *line)
        kept = min(near.shape[1], max(k, _KEPT, near.shape[1] // 8))
        near = tf.gather(near, _highest(estimates, kept), batch_dims=1)
        rows = tf.gather(arrays["rows"], near)
        highest = expansions.bounds(expansion, images, rows)
        order = _highest(highest, kept)
        rows, highest = (tf.gather(part, order, batch_dims=1) for part in (rows, highest))

        def score(rows: tf.Tensor, can_win: tf.Tensor) -> tf.Tensor:
            at = tf.where(can_win)
            queries, columns = tf.cast(at[:, 0], tf.int32), tf.gather_nd(rows, at)
            scores = self.scorer.pairs(sentences, queries, images, columns)
            return tf.tensor_scatter_nd_update(tf.fill(tf.shape(rows), -np.inf), at, scores)

        first = score(rows[:, :k], tf.ones_like(rows[:, :k], tf.bool))
        least = tf.reduce_min(first, axis=1, keepdims=True) - ROUNDING
        others = score(rows[:, k:], highest[:, k:] >= least)
        return rows, tf.concat([first, others], axis=1)

    def _score_all(
        self, sentences: EncodedSentences, expansion: LocalExpansion, least: tf.Tensor, k: int
    ) -> Hits:
        """The best of all images, where the k-th has a score of at least `least` [Q]."""
        images = _dense(self.arrays["images"])

        def search_one(numbers: tf.Tensor) -> Hits:
            query = numbers[0]
            rows = self.scorer.reaching(expansion.of(query), images, least[query])
            scores = self.scorer.pairs(sentences, tf.fill(tf.shape(rows), query), images, rows)
            best = _best(rows[tf.newaxis], scores[tf.newaxis], k)
            return Hits(*best, tf.size(rows)[tf.newaxis])

        hits = in_blocks(search_one, tf.size(least), _hits(k), 1)
        return hits._replace(softmax_rows=self._cost(sentences, hits.softmax_rows))

    def word_scores(self, words: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """log P(w_t|I) [Q, k, T] of the queries' words [Q, T] by images `rows` [Q, k] found.

        It is zero at padding and where no image was found.
        """
        words = tf.cast(words, tf.int32)
        found = tf.where(rows != NOTHING)
        images = tf.gather(_dense(self.arrays["images"]), tf.gather_nd(rows, found))
        queries, numbers = tf.cast(found[:, 0], tf.int32), tf.range(tf.shape(found)[0])
        sentences = self.scorer.read(words)
        log_probs = self.scorer.word_log_probs(sentences, queries, images, numbers)
        padding = tf.shape(words)[1] - tf.shape(log_probs)[1]
        log_probs = tf.pad(log_probs, [[0, 0], [0, padding]])
        shape = tf.concat([tf.shape(rows), tf.shape(words)[1:]], axis=0)
        return tf.scatter_nd(found, log_probs, tf.cast(shape, tf.int64))

    def _near(self, expansion: LocalExpansion, count: int) -> tf.Tensor:
        """The places [Q, count] in the lists of the images with the highest estimates."""
        arrays, begin, estimates = self.arrays, 0, []
        steps = arrays["mean"] - arrays["points"]  # from the centres to where sketches begin
        at_mean = expansion.sums(expansion.log_probs)
        at_mean += tf.reduce_sum(expansion.vectors * steps, axis=2)  # [Q, C]
        for centre, end in enumerate(self._ends):
            vectors = tf.matmul(expansion.vectors[:, centre], arrays["axes"])
            told = tf.matmul(vectors, arrays["sketches"][begin:end], transpose_b=True)
            estimates.append(at_mean[:, centre, tf.newaxis] + told)
            begin = end
        return _highest(tf.concat(estimates, axis=1), count)

    @tf.function(autograph=False, reduce_retracing=True)
    def search_sentences(
        self, images: tf.Tensor, k: int = 10, shortlist: int | None = BY_COUNT
    ) -> Hits:
        """The sentences with the highest log P(s|I) - log P(s) of every image a [Q, M].

        The exact search reads and expands every sentence: it pays for many images together. A
        query that is not finite finds nothing.
        """
        scorer, arrays, items = self.scorer, self.arrays, self.arrays["words"].shape[0]
        count = listed(items, k, shortlist)

        def search_listed(query: tf.Tensor) -> Hits:
            image = tf.gather(images, query)  # of one query
            told = _products(image - arrays["mean"], arrays["vectors"])
            near = _highest(arrays["priors"] + told, count)
            sentences = scorer.read(tf.gather(arrays["words"], near[0]))
            marginals = tf.gather(arrays["marginals"], near[0])
            bounds = scorer.rough_bounds(sentences, image[0]) - marginals
            bounds, order = tf.math.top_k(bounds, count)

            def score(places: tf.Tensor) -> tf.Tensor:
                scores = scorer.pairs(sentences, places, image, tf.zeros_like(places))
                return scores - tf.gather(marginals, places)

            scores = score(order[:k])
            least = _best(order[tf.newaxis, :k], scores[tf.newaxis], k)[1][0, -1] - ROUNDING
            others = order[k:][bounds[k:] >= least]
            scores = tf.concat([scores, score(others)], axis=0)[tf.newaxis]
            places = tf.concat([order[:k], others], axis=0)
            used = tf.math.count_nonzero(tf.gather(sentences.words, places), dtype=tf.int32)
            hits = _best(tf.gather(near, places, axis=1), scores, k)
            return Hits(*hits, used[tf.newaxis])

        asks = tf.reduce_all(tf.math.is_finite(images), axis=1) & (items > 0)
        first = _answer(search_listed, asks, k, 1)
        if shortlist is not None:
            return first

        def search_all(queries: tf.Tensor) -> Hits:
            own, least = tf.gather(images, queries), tf.gather(first.scores, queries)[:, -1]

            def more(begin, rows, scores, used):
                block = tf.range(begin, tf.minimum(begin + _SENTENCES_AT_ONCE, items))
                sentences = scorer.read(tf.gather(arrays["words"], block))
                expansion = scorer.expand_around(sentences, arrays["mean"][tf.newaxis])
                marginals = tf.gather(arrays["marginals"], block)[:, tf.newaxis]
                thresholds = least + marginals - ROUNDING
                log_probs, taken = scorer.at_least(sentences, expansion, own, thresholds)
                block = tf.repeat(block[tf.newaxis], tf.size(queries), axis=0)
                rows = tf.concat([rows, block], axis=1)
                scores = tf.concat([scores, tf.transpose(log_probs - marginals)], axis=1)
                taken += tf.math.count_nonzero(sentences.words, dtype=tf.int32)
                return begin + _SENTENCES_AT_ONCE, *_best(rows, scores, k), used + taken

            none = (0, *_nothing(tf.size(queries), k), 0)
            _, *hits, used = tf.while_loop(
                lambda begin, *_: begin < items, more, none, parallel_iterations=1
            )
            return Hits(*hits, used[tf.newaxis])

        hits = _answer(search_all, asks, k, tf.maximum(1, tf.size(asks)))
        return hits._replace(softmax_rows=hits.softmax_rows + first.softmax_rows)


def _answer(
    search: Callable[[tf.Tensor], Hits], asks: tf.Tensor, k: int, at_once: int | tf.Tensor
) -> Hits:
    """The hits of the queries that ask [Q] for something, `at_once` of them together."""
    asked = tf.where(asks)

    def search_block(numbers: tf.Tensor) -> Hits:
        return search(tf.gather(asked[:, 0], numbers))

    *hits, used = in_blocks(search_block, tf.shape(asked)[0], _hits(k), at_once)
    hits = [
        tf.tensor_scatter_nd_update(missing, asked, values)
        for missing, values in zip(_nothing(tf.size(asks), k), hits, strict=True)
    ]
    return Hits(*hits, tf.reduce_sum(used))


def _products(queries: tf.Tensor, vectors: tf.Variable) -> tf.Tensor:
    """Inner products [Q, S] of queries [Q, M] and vectors [S, M] of any type, cast in blocks."""
    count = vectors.shape[0]
    if vectors.dtype == tf.float32 or count <= _CAST_AT_ONCE:
        return tf.matmul(queries, tf.cast(vectors, tf.float32), transpose_b=True)

    def of_block(numbers: tf.Tensor) -> tf.Tensor:
        block = tf.cast(vectors[numbers[0] : numbers[-1] + 1], tf.float32)
        return tf.matmul(block, queries, transpose_b=True)

    return tf.transpose(in_blocks(of_block, count, tf.TensorSpec([None, None]), _CAST_AT_ONCE))


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


def _hits(k: int) -> Hits:
    """The types of the hits of a block, with the cost of each query or of all."""
    rows, scores = tf.TensorSpec([None, k], tf.int32), tf.TensorSpec([None, k])
    return Hits(rows, scores, tf.TensorSpec([None], tf.int32))


def _nothing(queries: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.fill([queries, k], NOTHING), tf.fill([queries, k], -np.inf)


def _dense(variable: tf.Variable) -> tf.Tensor:
    """The values of a variable to gather from.

    Once rows of a variable itself were gathered, TensorFlow copies it whenever it is read.
    """
    return variable.value()


def _variable(array: np.ndarray) -> tf.Variable:
    """A variable of an array, copied in blocks: of a whole array TensorFlow makes two copies."""
    kind = array.dtype
    if kind.itemsize > 2:
        kind = np.int32 if kind.kind == "i" else np.float32
    values = tf.raw_ops.Empty(shape=array.shape, dtype=tf.as_dtype(kind))
    for first in range(0, len(array), _COPIED_AT_ONCE):
        block = array[first : first + _COPIED_AT_ONCE].astype(kind, copy=False)
        rows = tf.range(first, first + len(block))
        values = tf.raw_ops.InplaceUpdate(x=values, i=rows, v=block)
    return tf.Variable(values, trainable=False)

"""Consensus reranking by CIDEr-D as TensorFlow ops: what an exported index answers with.

The scores are those of `consensus.Compared.by_neighbours` with the similarity `cider`.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from mrnn_tf import text
from mrnn_tf.consensus import reranking as consensus
from mrnn_tf.consensus.ngrams import ORDERS, UNKNOWN, Corpus
from mrnn_tf.consensus.similarity import CIDER_SCALE, CIDER_SIGMA, Cider
from mrnn_tf.errors import UserError


def arrays(corpus: Corpus) -> dict[str, np.ndarray]:
    """What `ConsensusGraph` needs of a corpus besides its `words`; nothing in it is an object."""
    cider = Cider(corpus)
    return {
        "keys": np.append(corpus.keys, np.iinfo(np.int64).max),  # a search ends inside
        "grams": corpus.counts.indices.astype(np.int64),
        "counts": corpus.counts.data.astype(np.float32),
        "captions": corpus.counts.indptr.astype(np.int64),
        "images": corpus.images.astype(np.int64),
        "norms": cider.norms.T.astype(np.float32),
        "lengths": corpus.lengths.astype(np.int64),
        "weights": cider.weights.astype(np.float32),
    }


class ConsensusGraph(tf.Module):
    """Scores hypotheses by the captions of neighbours.

    Args:
        words: of the corpus.
        given: the arrays that `arrays` makes of the corpus.
        m: int. How many captions count.

    Example:

    >>> corpus = Corpus.of([["a dog runs"], ["a cat"]])
    >>> graph = ConsensusGraph(corpus.words, arrays(corpus))
    >>> graph.scores([["a dog", "a cat"]], [[0, -1]])  # [1, 2], the first is higher
    """

    def __init__(
        self,
        words: Sequence[str],
        given: Mapping[str, np.ndarray],
        m: int = consensus.M["cider"],
    ):
        super().__init__(name="consensus")
        if m < 1:
            raise UserError(f"`m` must be 1 at least, not {m}.")
        self._m = m
        self._words = len(words)
        self._word_ids = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant(list(words), tf.string, [len(words)]),
                tf.range(len(words), dtype=tf.int64),
            ),
            default_value=UNKNOWN,
        )

        def variable(name):
            return tf.Variable(given[name], trainable=False, name=name)

        self._keys = variable("keys")
        self._grams, self._counts = variable("grams"), variable("counts")
        self._captions, self._images = variable("captions"), variable("images")
        self._norms, self._lengths = variable("norms"), variable("lengths")
        self._weights = variable("weights")

    def scores(
        self, captions: tf.Tensor, neighbours: tf.Tensor, weights: tf.Tensor | None = None
    ) -> tf.Tensor:
        """The consensus float [B, N] of captions; that of an empty one is 0.

        Args:
            captions: string [B, N], any spelling.
            neighbours: int [B, k], numbers of images; negative ones are left out.
            weights: float [B, k], what the captions of a neighbour count; 1 by default.
        """
        captions, neighbours = tf.convert_to_tensor(captions), tf.cast(neighbours, tf.int64)
        if weights is None:
            weights = tf.ones_like(neighbours, tf.float32)
        tokens = text.tokenize(tf.reshape(captions, [-1]))
        lengths = tf.reshape(tokens.row_lengths(), tf.shape(captions))
        tokens = tokens.to_tensor("")
        tokens = tf.reshape(tokens, tf.concat([tf.shape(captions), tf.shape(tokens)[1:]], axis=0))
        found = tf.map_fn(
            lambda image: self._image_scores(*image),
            (tokens, lengths, neighbours, weights),
            fn_output_signature=tf.TensorSpec(captions.shape[1:], tf.float32),
        )
        return tf.ensure_shape(found, captions.shape)

    def _image_scores(self, tokens, lengths, neighbours, weights):
        """The consensus [N] of the hypotheses [N, T] of one image."""
        own, orders, nodes = self._sentences(tokens, lengths)
        there = tf.where(neighbours >= 0)[:, 0]
        near = tf.gather(neighbours, there)
        rows = tf.ragged.range(tf.gather(self._images, near), tf.gather(self._images, near + 1))
        weights = tf.gather(tf.gather(weights, there), rows.value_rowids())
        rows = rows.flat_values

        similarities = self._cider(own, orders, nodes, lengths, rows)
        # Nothing is below 0: zeros stand for the captions that m would have beyond those there.
        values = tf.pad(similarities * weights, [[0, 0], [0, self._m]])
        highest, _ = tf.math.top_k(values, self._m)
        most, _ = tf.math.top_k(tf.pad(weights, [[0, self._m]]), self._m)
        return tf.math.divide_no_nan(tf.reduce_sum(highest, axis=1), tf.reduce_sum(most))

    def _sentences(self, tokens, lengths):
        """The n-grams of sentences: counts [N, U], orders [U] and nodes [U] in the corpus."""
        mask = tf.sequence_mask(lengths, tf.shape(tokens)[1])
        tokens, rows = tf.boolean_mask(tokens, mask), tf.where(mask)[:, 0]
        ends = tf.gather(tf.cumsum(lengths), rows)
        words, ids = tf.unique(tokens, tf.int64)
        known = tf.gather(self._word_ids.lookup(words), ids)  # of every place in the text

        size, count = tf.size(ids, tf.int64), tf.size(lengths, tf.int64)
        places, local, nodes = tf.range(size), ids, known
        parts = []
        for n in range(1, ORDERS + 1):
            if n > 1:
                inside = tf.where(places + n <= tf.gather(ends, places))[:, 0]
                places, last = tf.gather(places, inside), tf.gather(places, inside) + n - 1
                _, local = tf.unique(
                    tf.gather(local, inside) * size + tf.gather(ids, last), tf.int64
                )
                nodes = self._children(tf.gather(nodes, inside), tf.gather(known, last))
            grams = tf.reduce_max(tf.pad(local + 1, [[0, 1]]))
            counts = tf.scatter_nd(
                tf.stack([tf.gather(rows, places), local], axis=1),
                tf.ones_like(places, tf.float32),
                tf.stack([count, grams]),
            )
            first = tf.math.unsorted_segment_max(nodes, local, grams)
            parts.append((counts, tf.fill([grams], n), first))
        counts, orders, nodes = zip(*parts, strict=True)
        return tf.concat(counts, axis=1), tf.concat(orders, axis=0), tf.concat(nodes, axis=0)

    def _children(self, parents, words):
        """The nodes of n-grams with one word more."""
        wanted = parents * self._words + words
        at = tf.searchsorted(self._keys, wanted, out_type=tf.int64)
        found = (tf.gather(self._keys, at) == wanted) & (parents != UNKNOWN) & (words != UNKNOWN)
        return tf.where(found, at + self._words, tf.cast(UNKNOWN, tf.int64))

    def _cider(self, own, orders, nodes, lengths, rows):
        """CIDEr-D [N, C] of sentences by the captions `rows`."""
        theirs = self._counts_of(nodes, rows)
        weights = tf.gather(self._weights, tf.where(nodes < 0, self._unknown(), nodes))
        of_order = tf.cast(orders == tf.range(1, ORDERS + 1)[:, tf.newaxis], tf.float32)
        norms = tf.sqrt(tf.einsum("nu,ou->on", tf.square(own * weights), of_order))

        # Every occurrence is a column of its own: the smaller of two counts is then a product.
        most = tf.cast(tf.reduce_max(own, axis=0), tf.int32)
        columns = tf.repeat(tf.range(tf.size(most)), most)
        occurrence = tf.range(tf.size(columns)) - tf.gather(
            tf.cumsum(most, exclusive=True), columns
        )
        occurrence = tf.cast(occurrence, tf.float32)
        own = tf.cast(tf.gather(own, columns, axis=1) > occurrence, tf.float32)
        own = own * tf.gather(of_order, columns, axis=1)[:, tf.newaxis]  # [orders, N, columns]
        values = tf.gather(theirs * tf.square(weights), columns, axis=1)
        values = tf.where(tf.gather(theirs, columns, axis=1) > occurrence, values, 0.0)
        shared = tf.einsum("onu,cu->onc", own, values)

        both = tf.einsum("on,co->onc", norms, tf.gather(self._norms, rows))
        bigrams = tf.maximum(lengths - 1, 0)[:, tf.newaxis]
        bigrams = bigrams - tf.maximum(tf.gather(self._lengths, rows) - 1, 0)
        near = tf.exp(-tf.square(tf.cast(bigrams, tf.float32)) / (2 * CIDER_SIGMA**2))
        return CIDER_SCALE * near * tf.reduce_mean(tf.math.divide_no_nan(shared, both), axis=0)

    def _counts_of(self, nodes, rows):
        """How often the captions `rows` have the n-grams `nodes`: float [C, U]."""
        entries = tf.ragged.range(
            tf.gather(self._captions, rows), tf.gather(self._captions, rows + 1)
        )
        grams = tf.gather(self._grams, entries.flat_values)
        order = tf.argsort(nodes)
        wanted = tf.concat([tf.constant([UNKNOWN], tf.int64), tf.gather(nodes, order)], axis=0)
        at = tf.searchsorted(wanted, grams, side="right", out_type=tf.int64) - 1
        hit = tf.where(tf.gather(wanted, at) == grams)[:, 0]
        column = tf.cast(tf.gather(order, tf.gather(at, hit) - 1), tf.int64)
        return tf.scatter_nd(
            tf.stack([tf.gather(entries.value_rowids(), hit), column], axis=1),
            tf.gather(self._counts, tf.gather(entries.flat_values, hit)),
            tf.stack([tf.size(rows, tf.int64), tf.size(nodes, tf.int64)]),
        )

    def _unknown(self):
        return tf.size(self._weights, tf.int64) - 1

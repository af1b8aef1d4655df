"""How similar sentences are, by their n-grams: TensorFlow ops, all pairs of a batch at once.

Besides pycocoevalcap's, which makes the reported figures, this is the only CIDEr-D: the reward of
training, reranking, its upper bound and an exported index all compare by it.

A batch is B images with N hypotheses each, string [B, N], N at least 1. They are compared with the
captions of images of a corpus, or with R other sentences of every image, string [B, R]. Sentences
are words joined by spaces; the similarity of an empty one is 0.

>>> corpus = Corpus.of([["A dog runs.", "the dog"], ["a cat"]])
>>> NGramF1(corpus).to_captions([["a dog"]], [[0]]).values.numpy()
array([[[0.48888889, 0.25      ]]])
"""

import abc
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from mrnn_tf.consensus.neighbours import MISSING
from mrnn_tf.consensus.ngrams import ORDERS, Corpus
from mrnn_tf.errors import UserError

CIDER_SIGMA = 6.0
CIDER_SCALE = 10.0
_UNKNOWN = -1  # a word or an n-gram that the corpus does not have


class Similarities(NamedTuple):
    """Similarities to captions, and whose captions they are."""

    values: tf.Tensor  # float64 [B, N, C], 0 in padding
    neighbour: tf.Tensor  # int64 [B, C], a column of the images asked for; `MISSING` in padding


class _NGrams(NamedTuple):
    """The n-grams of a batch. U counts the distinct pairs of an image and an n-gram."""

    own: tf.Tensor  # float64 [U, N], how often the hypotheses of the image have the n-gram
    cells: tf.Tensor  # int64 [U], image * orders + order
    nodes: tf.Tensor  # int64 [U], the n-gram in the corpus, or -1
    numbers: tf.Tensor  # int64 [P], which of U a sentence has that is compared with,
    rows: tf.Tensor  # int64 [P], row * orders + order of that sentence,
    counts: tf.Tensor  # float64 [P], and how often it has the n-gram

    def shared(self, rows: tf.Tensor, scales: tf.Tensor | None = None) -> tf.Tensor:
        """Sums of min(own, theirs), times scales [P] if given: float64 [rows, orders, N]."""
        both = tf.minimum(tf.gather(self.own, self.numbers), self.counts[:, tf.newaxis])
        both = both if scales is None else both * scales[:, tf.newaxis]
        return _summed(both, self.rows, rows)


class NGramSimilarity(tf.Module, abc.ABC):
    """What the similarities share. The arrays of the corpus are variables that a model may own."""

    def __init__(self, corpus: Corpus):
        super().__init__()
        self._words = len(corpus.words)
        words = tf.constant(["", *corpus.words])  # a table must not be empty
        numbers = tf.range(_UNKNOWN, self._words, dtype=tf.int64)
        content = tf.lookup.KeyValueTensorInitializer(words, numbers)
        self._word_ids = tf.lookup.StaticHashTable(content, default_value=_UNKNOWN)
        # Read by `value()`: a gather from a variable makes every other read of it a copy.
        self._arrays = {
            name: tf.Variable(getattr(corpus, name), trainable=False, name=name)
            for name in ("ids", "captions", "images", "keys", "weights", "norms")
        }

    def to_captions(self, hypotheses: tf.Tensor, images: tf.Tensor) -> Similarities:
        """Compares with all captions of images [B, k] of the corpus; negative ones are left out."""
        hypotheses, images = tf.convert_to_tensor(hypotheses), tf.cast(images, tf.int64)
        arrays = {name: array.value() for name, array in self._arrays.items()}
        chosen = tf.where(images >= 0)
        numbers, begins = tf.gather_nd(images, chosen), arrays["images"]
        captions = tf.ragged.range(tf.gather(begins, numbers), tf.gather(begins, numbers + 1))
        owners, neighbour = tf.unstack(tf.gather(chosen, captions.value_rowids()), axis=1)
        captions = captions.flat_values
        words = tf.RaggedTensor.from_row_splits(arrays["ids"], arrays["captions"], validate=False)
        words = tf.cast(tf.gather(words, captions), tf.int64)
        [own], size = self._numbered([hypotheses])
        norms = tf.gather(arrays["norms"], captions)
        values = self._compare(own, words, owners, tf.shape(hypotheses)[1], size, norms)
        batch = tf.shape(hypotheses, tf.int64)[0]

        def dense(rows, padding):
            rows = tf.RaggedTensor.from_value_rowids(rows, owners, batch, validate=False)
            return rows.to_tensor(padding)

        values = tf.transpose(dense(values, 0.0), [0, 2, 1])
        values = tf.ensure_shape(values, [*hypotheses.shape, None])
        return Similarities(values, dense(neighbour, MISSING))

    def to_sentences(self, hypotheses: tf.Tensor, sentences: tf.Tensor) -> tf.Tensor:
        """Compares with other sentences [B, R] of the same images: float64 [B, N, R]."""
        hypotheses, sentences = tf.convert_to_tensor(hypotheses), tf.convert_to_tensor(sentences)
        (own, theirs), size = self._numbered([hypotheses, sentences])
        batch, count = tf.unstack(tf.shape(sentences))
        owners = tf.repeat(tf.range(tf.cast(batch, tf.int64)), count)
        width = tf.shape(hypotheses)[1]
        values = self._compare(own, theirs, owners, width, size)
        values = tf.transpose(tf.reshape(values, [batch, count, width]), [0, 2, 1])
        return tf.ensure_shape(values, [*hypotheses.shape, sentences.shape[1]])

    def _numbered(self, texts: Sequence[tf.Tensor]) -> tuple[list[tf.RaggedTensor], tf.Tensor]:
        """The words of sentences as numbers below a size: those of the corpus come first."""
        split = [tf.strings.split(tf.reshape(sentences, [-1])) for sentences in texts]
        words, at = tf.unique(tf.concat([words.flat_values for words in split], axis=0))
        numbers, count = self._word_ids.lookup(words), tf.size(words, tf.int64)
        numbers = tf.where(numbers == _UNKNOWN, self._words + tf.range(count), numbers)
        numbers = tf.split(tf.gather(numbers, at), [tf.size(words.flat_values) for words in split])
        numbered = [a.with_flat_values(b) for a, b in zip(split, numbers, strict=True)]
        return numbered, self._words + count

    def _compare(self, own, theirs, owners, width, size, norms=None) -> tf.Tensor:
        """Similarities float64 [R, N] of `own` words [B * N, ()] and those of sentences [R, ()].

        Sentence r is compared with the `width` hypotheses of image `owners[r]`. All word numbers
        are below `size`. The `norms` [R, orders] of the sentences may be known.
        """
        grams = self._count(own, theirs, owners, tf.cast(width, tf.int64), size, norms is None)
        lengths = tf.reshape(own.row_lengths(), [-1, width])
        return self._of_counts(grams, lengths, theirs.row_lengths(), owners, norms)

    @abc.abstractmethod
    def _of_counts(self, grams, own_lengths, lengths, owners, norms) -> tf.Tensor:
        """Similarities float64 [R, N], by n-grams and by the lengths [B, N] and [R] in words."""

    def _count(self, own, theirs, owners, width, size, everything) -> _NGrams:
        """Counts the n-grams of the hypotheses, or `everything`, in all sentences.

        An n-gram is numbered by its image, or the number of its first words, and its last word.
        """
        hypotheses = own.nrows()
        ids = tf.concat([own, theirs], axis=0)
        rows, words = ids.value_rowids(), ids.flat_values
        ends = tf.gather(ids.row_splits, rows + 1)
        count = tf.size(words, tf.int64)
        counted = count if everything else own.row_splits[-1]  # n-grams that begin before it

        images = tf.range(hypotheses // width)
        begins = tf.range(count)
        numbers = tf.gather(tf.concat([tf.repeat(images, width), owners], axis=0), rows)
        nodes, before, levels = None, tf.zeros([], tf.int64), []
        for order in range(ORDERS):
            if order:
                inside = tf.where(begins + order < tf.gather(ends, begins))[:, 0]
                begins, numbers = tf.gather(begins, inside), tf.gather(numbers, inside)
            keys, numbers = tf.unique(numbers * size + tf.gather(words, begins + order), tf.int64)
            # Hypotheses come first, so their n-grams have the first numbers.
            distinct = tf.reduce_max(tf.where(begins < counted, numbers + 1, 0))
            distinct = tf.maximum(distinct, 0)  # the maximum of nothing is negative
            hits = tf.where(numbers < distinct)[:, 0]
            begins, numbers = tf.gather(begins, hits), tf.gather(numbers, hits)
            parents, last = keys[:distinct] // size, keys[:distinct] % size
            last = tf.where(last < self._words, last, _UNKNOWN)
            images = tf.gather(images, parents)
            nodes = self._children(tf.gather(nodes, parents), last) if order else last
            in_rows = tf.gather(rows, begins) * ORDERS + order
            levels.append((images * ORDERS + order, nodes, before + numbers, in_rows))
            before += distinct
        columns = zip(*levels, strict=True)
        cells, nodes, numbers, rows = (tf.concat(column, axis=0) for column in columns)
        is_own = rows < hypotheses * ORDERS
        cells_of_own = tf.stack([numbers, rows // ORDERS % width], axis=1)[is_own]
        ones = tf.ones([tf.shape(cells_of_own)[0]], tf.float64)
        own = tf.scatter_nd(cells_of_own, ones, tf.stack([before, width]))
        pairs = ((rows - hypotheses * ORDERS) * before + numbers)[~is_own]
        pairs, _, counts = tf.unique_with_counts(pairs, tf.int64)
        counts = tf.cast(counts, tf.float64)
        return _NGrams(own, cells, nodes, pairs % before, pairs // before, counts)

    def _children(self, parents: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
        """The nodes of n-grams with one word more."""
        keys = self._arrays["keys"].value()
        wanted = parents * self._words + words
        at = tf.searchsorted(keys, wanted, out_type=tf.int64)
        known = (tf.gather(keys, at) == wanted) & (parents != _UNKNOWN) & (words != _UNKNOWN)
        return tf.where(known, self._words + at, _UNKNOWN)


class CiderD(NGramSimilarity):
    """CIDEr-D, 0 to 10, as pycocoevalcap has it but for the frequencies, which are the corpus's."""

    def __init__(self, corpus: Corpus):
        if not len(corpus):
            raise UserError("`corpus` must hold an image at least: CIDEr needs its frequencies.")
        super().__init__(corpus)

    def _of_counts(self, grams, own_lengths, lengths, owners, norms):
        weights = tf.gather(self._arrays["weights"].value(), grams.nodes + 1)
        images, rows = tf.shape(own_lengths)[0], tf.size(lengths)
        own = tf.sqrt(_summed(tf.square(grams.own * weights[:, tf.newaxis]), grams.cells, images))
        weights = tf.gather(weights, grams.numbers)
        if norms is None:
            squares = tf.square(grams.counts * weights)[:, tf.newaxis]
            norms = tf.sqrt(_summed(squares, grams.rows, rows)[:, :, 0])
        shared = grams.shared(rows, grams.counts * tf.square(weights))
        cosines = tf.math.divide_no_nan(shared, tf.gather(own, owners) * norms[:, :, tf.newaxis])
        # What the original calls the length is the number of bigrams.
        bigrams = tf.gather(tf.maximum(own_lengths - 1, 0), owners)
        bigrams = tf.cast(bigrams - tf.maximum(lengths - 1, 0)[:, tf.newaxis], tf.float64)
        penalties = tf.exp(-tf.square(bigrams) / (2 * CIDER_SIGMA**2))
        return CIDER_SCALE * penalties * tf.reduce_mean(cosines, axis=1)


class NGramF1(NGramSimilarity):
    """The authors' BLEU: the mean of the F1 of n-grams, n = 1 to 4.

    Theirs is 0 wherever a sentence has fewer than four words, by the wrong index in a loop. Here an
    order counts wherever one of the two sentences has n-grams of it: the F1 of a sentence of two
    words and one of three is the mean of three orders, the last of them 0.
    """

    def _of_counts(self, grams, own_lengths, lengths, owners, norms):
        orders = tf.range(ORDERS, dtype=tf.int64)[:, tf.newaxis]
        totals = tf.gather(tf.maximum(own_lengths[:, tf.newaxis] - orders, 0), owners)
        totals += tf.maximum(lengths[:, tf.newaxis, tf.newaxis] - orders, 0)
        totals = tf.cast(totals, tf.float64)  # [R, orders, N]
        shared = grams.shared(tf.size(lengths))
        f1 = 2 * tf.math.divide_no_nan(shared, totals)
        used = tf.math.count_nonzero(totals, axis=1, dtype=tf.float64)
        return tf.math.divide_no_nan(tf.reduce_sum(f1, axis=1), used)


SIMILARITIES = {"bleu": NGramF1, "cider": CiderD}


def _summed(values: tf.Tensor, cells: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Sums of values [..., N] by their cells, row * orders + order: [rows, orders, N]."""
    sums = tf.math.unsorted_segment_sum(values, cells, rows * ORDERS)
    return tf.reshape(sums, [rows, ORDERS, tf.shape(values)[1]])

"""Sentences expanded around images: estimates and upper bounds of log P(s|I).

With p the softmax at a point a_k and d_t = U_{w_t} - E_p[U], three things follow for an image
a = V_I I, all exact at a_k:

- an inner product, to first order: log P(s|a) is about c_k + v_k (a - a_k), with c_k = log P(s|a_k)
  and v_k = sum_t g2'(h_t + a_k) d_t;
- a bound: log P(w_t|a) <= log P(w_t|a_k) + d_t (g2(h_t + a) - g2(h_t + a_k)), because the
  logarithm of the softmax's sum is convex in the logits (Jensen's inequality);
- a tighter bound: the sum over the words that are likely at the points, term by term, and Jensen's
  inequality for the rest of the sum alone, at the point where that is highest.

The first chooses a shortlist among any number of images, the others leave out what cannot win. The
second costs one row of M, the third one for each likely word, where the softmax costs M x V. The
third with g2 to first order is an estimate by an image's few coordinates along the axes of
`centres`: of what the first lists, it keeps the best.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.model.layers import scaled_tanh
from mrnn_tf.retrieval.sentences import EncodedSentences
from mrnn_tf.retrieval.softmax import FLOATS, ROWS, Readout, in_blocks

LEVELS = (0, 32, 256)  # likely words that are summed one by one; benchmarks/shortlists.py
_AT_ONCE = 2**21  # values of g2(h + a)
_LARGEST = 80.0  # of the logarithm of a term
_SMALLEST = 1e-30  # the probability of the rest where nothing is left


class Expansion(NamedTuple):
    """Sentences around the mean image; `log_probs` is zero at padding."""

    h: tf.Tensor  # float [S, T, M], the words' part of the sentences
    words: tf.Tensor  # int [S, T]
    log_probs: tf.Tensor  # float [S, T], log P(w_t|mean)
    vectors: tf.Tensor  # float [S, M], v_s


class LocalExpansion(NamedTuple):
    """Sentences around C points, for bounds of L levels; their N words in a row, not padded."""

    sentences: tf.Tensor  # int [N], whose words they are
    h: tf.Tensor  # float [N, M], what the words before say
    words: tf.Tensor  # int [N]
    log_probs: tf.Tensor  # float [N, C], log P(w_t|a_k)
    vectors: tf.Tensor  # float [S, C, M], v_k
    likely: tf.Tensor  # int [N, W], the likeliest words first
    rests: tf.Tensor  # float [N, L, C, M], E[U] over the words that are not among a level's
    offsets: tf.Tensor  # float [N, L, C], so that rests m + offsets <= log of the rest's sum
    word_vectors: tf.Tensor  # float [V, M], U
    biases: tf.Tensor  # float [V], of the words

    def of(self, sentence: tf.Tensor) -> "LocalExpansion":
        """The expansion of one of the sentences."""
        own = tf.where(self.sentences == sentence)[:, 0]
        h, words, log_probs, likely, rests, offsets = (
            tf.gather(part, own)
            for part in (self.h, self.words, self.log_probs, self.likely, self.rests, self.offsets)
        )
        vectors, sentences = self.vectors[sentence, tf.newaxis], tf.zeros_like(words)
        bounding = likely, rests, offsets, self.word_vectors, self.biases
        return LocalExpansion(sentences, h, words, log_probs, vectors, *bounding)

    def sums(self, values: tf.Tensor) -> tf.Tensor:
        """The sums [S, ...] over the words of every sentence of values [N, ...]."""
        return tf.math.unsorted_segment_sum(values, self.sentences, tf.shape(self.vectors)[0])


def expand(readout: Readout, sentences: EncodedSentences, mean: tf.Tensor) -> Expansion:
    """Expands sentences at the mean image [M]; one softmax row a word."""
    local = expand_around(readout, sentences, mean[tf.newaxis], levels=(0,))
    at = tf.where(sentences.words != schema.PAD_ID)
    shape = tf.shape(sentences.words, tf.int64)
    log_probs = tf.scatter_nd(at, local.log_probs[:, 0], shape)
    return Expansion(*sentences, log_probs, local.vectors[:, 0])


def expand_around(
    readout: Readout,
    sentences: EncodedSentences,
    points: tf.Tensor,
    levels: tuple[int, ...] = LEVELS,
) -> LocalExpansion:
    """Expands sentences at points [C, M]; a softmax row for every word and point."""
    size, vocabulary_size = readout.kernel.shape
    levels = [min(level, vocabulary_size) for level in levels]
    at, word_vectors = tf.where(sentences.words != schema.PAD_ID), tf.transpose(readout.kernel)
    h, words = (tf.gather_nd(part, at) for part in sentences)

    def at_points(numbers: tf.Tensor) -> tuple[tf.Tensor, ...]:
        own = tf.gather(words, numbers)[:, tf.newaxis]
        m = scaled_tanh(tf.gather(h, numbers)[:, tf.newaxis] + points)  # [n, C, M]
        logits = readout.logits(tf.reshape(m, [-1, size]))
        shape = tf.concat([tf.shape(m)[:2], [vocabulary_size]], axis=0)
        probabilities = tf.reshape(tf.nn.softmax(logits), shape)
        # At the likeliest word, whose probability is the surest.
        log_sums = tf.reshape(tf.reduce_max(logits, axis=1), shape[:2])
        log_sums -= tf.math.log(tf.reduce_max(probabilities, axis=2))
        own_logits = tf.gather(tf.reshape(logits, shape), own, axis=2, batch_dims=1)[..., 0]
        log_probs = own_logits - log_sums

        highest = tf.reduce_max(probabilities, axis=1)
        likely = tf.math.top_k(highest, levels[-1]).indices
        rest = probabilities
        if levels[-1]:
            # Of equal probabilities all leave the rest, which is a lower bound then still.
            least = tf.gather(highest, likely[:, -1:], batch_dims=1)
            rest = tf.where((highest < least)[:, tf.newaxis], probabilities, 0.0)
        masses = [tf.reduce_sum(rest, axis=2)]
        sums = tf.matmul(tf.reshape(rest, [-1, vocabulary_size]), word_vectors)
        sums = [tf.reshape(sums, tf.shape(m))]
        # A lower level's rest has the words between the two as well.
        for low, high in reversed([*pairwise(levels)]):
            between = likely[:, low:high]
            more = tf.gather(probabilities, between, axis=2, batch_dims=1)
            masses.append(masses[-1] + tf.reduce_sum(more, axis=2))
            sums.append(sums[-1] + tf.matmul(more, tf.gather(word_vectors, between)))
        masses = tf.maximum(tf.stack(masses[::-1], axis=1), _SMALLEST)  # [n, L, C]
        rests = tf.stack(sums[::-1], axis=1) / masses[..., tf.newaxis]
        offsets = tf.reduce_sum(rests * m[:, tf.newaxis], axis=3)
        offsets = log_sums[:, tf.newaxis] + tf.math.log(masses) - offsets
        vectors = _slope(m) * (tf.gather(word_vectors, own) - rests[:, 0])
        expanded = log_probs, vectors, likely, rests, offsets
        return tuple(map(tf.reshape, expanded, ([-1], [-1, size], [-1], [-1, size], [-1])))

    vectors = tf.TensorSpec([None, size])
    specs = FLOATS, vectors, tf.TensorSpec([None], tf.int32), vectors, FLOATS
    count, deep = tf.shape(points)[0], len(levels)
    expanded = in_blocks(at_points, tf.size(words), specs, tf.maximum(1, ROWS // count))
    shapes = [count], [count, size], [levels[-1]], [deep, count, size], [deep, count]
    expanded = (
        tf.reshape(values, [tf.size(words), *shape])
        for values, shape in zip(expanded, shapes, strict=True)
    )
    log_probs, vectors, *bounding = expanded
    own = tf.cast(at[:, 0], tf.int32)
    vectors = tf.math.unsorted_segment_sum(vectors, own, tf.shape(sentences.words)[0])
    bounding += [word_vectors, readout.bias]
    return LocalExpansion(own, h, words, log_probs, vectors, *bounding)


def bounds(
    expansion: LocalExpansion, images: tf.Tensor, columns: tf.Tensor, level: int = -1
) -> tf.Tensor:
    """The highest log P [S, P] of every sentence by the images `columns` [S, P] of a [I, M].

    Columns [1, P] are those of all sentences. The bounds sum the likely words of one of `LEVELS`
    and are the tighter, the more these are.
    """

    def logits(vectors, offsets, h, a):
        return tf.matmul(vectors, scaled_tanh(h + a), transpose_b=True) + offsets

    return _log_probs(expansion, level, images, columns, logits)


def estimates(
    expansion: LocalExpansion,
    sketches: tf.Tensor,
    columns: tf.Tensor,
    mean: tf.Tensor,
    axes: tf.Tensor,
    level: int = 1,
) -> tf.Tensor:
    """log P [S, P] of every sentence, about, by the images `columns` [S, P] of sketches [I, D].

    Sketches are coordinates along the axes [M, D]. The terms are those of `bounds`, with g2 to
    first order at the mean image.
    """

    def logits(vectors, offsets, h, sketches):
        m = scaled_tanh(h + mean)  # [n, 1, M]
        offsets += tf.matmul(vectors, m, transpose_b=True)
        along = tf.tensordot(vectors * _slope(m), axes, 1)  # [n, W + 1 + C, D]
        return tf.matmul(along, sketches, transpose_b=True) + offsets

    return _log_probs(expansion, level, sketches, columns, logits)


def _log_probs(
    expansion: LocalExpansion,
    level: int,
    images: tf.Tensor,
    columns: tf.Tensor,
    logits: Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """log P [S, P] by the sums of a level, as far as the logits are right.

    `logits` gets what makes those of W likely words, of the word itself and, from C points, of the
    rest: vectors [n, W + 1 + C, M] and offsets [n, W + 1 + C, 1]; h [n, 1, M]; and the rows of
    `images` [n, P, D]. It returns [n, W + 1 + C, P].
    """
    likely = tf.concat([expansion.likely[:, : LEVELS[level]], expansion.words[:, tf.newaxis]], 1)
    count, width = tf.shape(columns)[1], tf.shape(likely)[1]

    def of_block(numbers: tf.Tensor) -> tf.Tensor:
        block = slice(numbers[0], numbers[-1] + 1)
        words, rows = likely[block], columns
        if columns.shape[0] != 1:
            rows = tf.gather(columns, expansion.sentences[block])
        vectors = tf.gather(expansion.word_vectors, words), expansion.rests[block, level]
        offsets = tf.gather(expansion.biases, words), expansion.offsets[block, level]
        vectors, offsets = tf.concat(vectors, axis=1), tf.concat(offsets, axis=1)[..., tf.newaxis]
        h = expansion.h[block, tf.newaxis]
        values = logits(vectors, offsets, h, tf.gather(images, rows))
        # 1 / P(w) is the sum of these terms; where one is cut off, log P(w) is only higher.
        terms = tf.exp(tf.minimum(values - values[:, width - 1 : width], _LARGEST))
        sums = tf.reduce_sum(terms[:, : width - 1], axis=1)
        sums += tf.reduce_max(terms[:, width:], axis=1)
        return tf.reshape(-tf.math.log(sums), [-1])

    # Vectors and images of a block stay in the processor's cache.
    values = tf.maximum(width * tf.shape(expansion.h)[1], count * tf.shape(images)[1])
    at_once = tf.maximum(1, _AT_ONCE // tf.maximum(1, values))
    log_probs = in_blocks(of_block, tf.size(expansion.words), FLOATS, at_once)
    return expansion.sums(tf.reshape(log_probs, [tf.size(expansion.words), count]))


def _slope(m: tf.Tensor) -> tf.Tensor:
    """The derivative of g2 where its value is m."""
    return (1.7159 - m * m / 1.7159) * (2 / 3)

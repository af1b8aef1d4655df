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
    """Sentences around C points, for bounds of L levels; all but `h` is zero at padding."""

    h: tf.Tensor  # float [S, T, M], the words' part of the sentences
    words: tf.Tensor  # int [S, T]
    log_probs: tf.Tensor  # float [S, T, C], log P(w_t|a_k)
    vectors: tf.Tensor  # float [S, C, M], v_k
    likely: tf.Tensor  # int [S, T, W], the likeliest words first
    rests: tf.Tensor  # float [S, T, L, C, M], E[U] over the words that are not among a level's
    offsets: tf.Tensor  # float [S, T, L, C], so that rests m + offsets <= log of the rest's sum
    word_vectors: tf.Tensor  # float [V, M], U
    biases: tf.Tensor  # float [V], of the words


def expand(readout: Readout, sentences: EncodedSentences, mean: tf.Tensor) -> Expansion:
    """Expands sentences at the mean image [M]; one softmax row a word."""
    local = expand_around(readout, sentences, mean[tf.newaxis], levels=(0,))
    return Expansion(*sentences, local.log_probs[..., 0], local.vectors[:, 0])


def expand_around(
    readout: Readout,
    sentences: EncodedSentences,
    points: tf.Tensor,
    levels: tuple[int, ...] = LEVELS,
) -> LocalExpansion:
    """Expands sentences at points [C, M]; a softmax row for every word and point."""
    h, words = sentences
    size, vocabulary_size = readout.kernel.shape
    levels = [min(level, vocabulary_size) for level in levels]
    places, word_vectors = tf.where(words != schema.PAD_ID), tf.transpose(readout.kernel)

    def at_points(numbers: tf.Tensor) -> tuple[tf.Tensor, ...]:
        at = tf.gather(places, numbers)
        own = tf.gather_nd(words, at)[:, tf.newaxis]
        m = scaled_tanh(tf.gather_nd(h, at)[:, tf.newaxis] + points)  # [n, C, M]
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
    count = tf.shape(points)[0]
    expanded = in_blocks(at_points, tf.shape(places)[0], specs, tf.maximum(1, ROWS // count))
    deep = len(levels)
    shapes = [count], [count, size], [levels[-1]], [deep, count, size], [deep, count]

    def placed(values: tf.Tensor, shape: list) -> tf.Tensor:
        values = tf.reshape(values, [tf.shape(places)[0], *shape])
        shape = tf.concat([tf.shape(words), shape], axis=0)
        return tf.scatter_nd(places, values, tf.cast(shape, tf.int64))

    log_probs, vectors, *bounding = map(placed, expanded, shapes)
    vectors = tf.reduce_sum(vectors, axis=1)
    return LocalExpansion(h, words, log_probs, vectors, *bounding, word_vectors, readout.bias)


def bounds(
    expansion: LocalExpansion,
    row: tf.Tensor,
    images: tf.Tensor,
    columns: tf.Tensor,
    level: int = -1,
) -> tf.Tensor:
    """The highest log P [P] of sentence `row` by image `columns[p]` of a [I, M].

    They sum the likely words of one of `LEVELS` and are the tighter, the more these are.
    """
    h, vectors, offsets, likely = _terms(expansion, row, level)
    h = h[:, tf.newaxis]

    def of_block(numbers: tf.Tensor) -> tf.Tensor:
        m = scaled_tanh(h + tf.gather(images, tf.gather(columns, numbers)))  # [T, P, M]
        return _sum(tf.matmul(vectors, m, transpose_b=True) + offsets, likely)

    at_once = tf.maximum(1, _AT_ONCE // tf.maximum(1, tf.size(h)))
    return in_blocks(of_block, tf.shape(columns)[0], FLOATS, at_once)


def estimates(
    expansion: LocalExpansion,
    row: tf.Tensor,
    sketches: tf.Tensor,
    mean: tf.Tensor,
    axes: tf.Tensor,
    level: int = 1,
) -> tf.Tensor:
    """log P [P] of sentence `row` by images, about, from their coordinates [P, D] along the axes.

    The terms are those of `bounds`, with g2 to first order at the mean image.
    """
    h, vectors, offsets, likely = _terms(expansion, row, level)
    m = scaled_tanh(h + mean)
    offsets += tf.linalg.matvec(vectors, m)[..., tf.newaxis]
    vectors = tf.tensordot(vectors * _slope(m)[:, tf.newaxis], axes, 1)  # [T, W + C, D]

    def of_block(numbers: tf.Tensor) -> tf.Tensor:
        block = tf.gather(sketches, numbers)
        return _sum(tf.tensordot(vectors, block, [[2], [1]]) + offsets, likely)

    at_once = tf.maximum(1, _AT_ONCE // tf.maximum(1, tf.size(offsets)))
    return in_blocks(of_block, tf.shape(sketches)[0], FLOATS, at_once)


def _terms(
    expansion: LocalExpansion, row: tf.Tensor, level: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """h [T, M] of a sentence, and what makes the logits of a level, less that of its own word.

    They are those of W likely words and, from every point, of the rest: vectors [T, W + C, M],
    offsets [T, W + C, 1], and W.
    """
    length = tf.math.count_nonzero(expansion.words[row], dtype=tf.int32)
    own = expansion.words[row, :length, tf.newaxis]
    likely = expansion.likely[row, :length, : LEVELS[level]]
    vectors = tf.gather(expansion.word_vectors, likely), expansion.rests[row, :length, level]
    vectors = tf.concat(vectors, axis=1) - tf.gather(expansion.word_vectors, own)
    offsets = tf.gather(expansion.biases, likely), expansion.offsets[row, :length, level]
    offsets = tf.concat(offsets, axis=1) - tf.gather(expansion.biases, own)
    return expansion.h[row, :length], vectors, offsets[..., tf.newaxis], tf.shape(likely)[1]


def _sum(logits: tf.Tensor, likely: tf.Tensor) -> tf.Tensor:
    """log P [P] of a sentence by the logits of `_terms`, [T, W + C, P]."""
    # 1 / P(w) is the sum of these terms; where one is cut off, log P(w) is only higher.
    terms = tf.exp(tf.minimum(logits, _LARGEST))
    sums = tf.reduce_sum(terms[:, :likely], axis=1) + tf.reduce_max(terms[:, likely:], axis=1)
    return -tf.reduce_sum(tf.math.log(sums), axis=0)


def _slope(m: tf.Tensor) -> tf.Tensor:
    """The derivative of g2 where its value is m."""
    return (1.7159 - m * m / 1.7159) * (2 / 3)

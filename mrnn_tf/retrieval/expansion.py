"""Sentences expanded around the mean image: estimates and upper bounds of log P(s|I).

With p the softmax at the mean image and d_t = U_{w_t} - E_p[U], two things follow for an image
a = V_I I, both exact at the mean image and to first order around it:

- an inner product: log P(s|a) is about c_s + v_s (a - mean), with v_s = sum_t g2'(h_t + mean) d_t;
- a bound: log P(w_t|a) <= log P(w_t|mean) + d_t (g2(h_t + a) - g2(h_t + mean)), because the
  logarithm of the softmax's sum is convex in the logits (Jensen's inequality).

The first chooses a shortlist among any number of images, the second leaves out what cannot win: it
costs one row of M where the softmax costs M x V.
"""

from typing import NamedTuple

import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.model.layers import scaled_tanh
from mrnn_tf.retrieval.sentences import EncodedSentences
from mrnn_tf.retrieval.softmax import FLOATS, Readout, in_blocks

_BOUNDS_AT_ONCE = 2**20  # values of g2(h + a); they stay in the cache


class Expansion(NamedTuple):
    """Sentences around the mean image; all but `h` is zero at padding."""

    h: tf.Tensor  # float [S, T, M], the words' part of the sentences
    words: tf.Tensor  # int [S, T]
    directions: tf.Tensor  # float [S, T, M], d_t
    log_probs: tf.Tensor  # float [S, T], log P(w_t|mean)
    offsets: tf.Tensor  # float [S, T], log P(w_t|mean) - d_t g2(h_t + mean)
    vectors: tf.Tensor  # float [S, M], v_s


def expand(readout: Readout, sentences: EncodedSentences, mean: tf.Tensor) -> Expansion:
    """Expands sentences at the mean image [M]; one softmax row a word."""
    h, words = sentences
    places = tf.where(words != schema.PAD_ID)

    def at_mean(numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        at = tf.gather(places, numbers)
        own = tf.gather_nd(words, at)
        log_probs = tf.nn.log_softmax(readout.logits(scaled_tanh(tf.gather_nd(h, at) + mean)))
        expected = tf.matmul(tf.exp(log_probs), readout.kernel, transpose_b=True)
        directions = tf.transpose(tf.gather(readout.kernel, own, axis=1)) - expected
        return directions, tf.gather(log_probs, own, batch_dims=1)

    specs = tf.TensorSpec([None, readout.kernel.shape[0]]), FLOATS
    directions, log_probs = in_blocks(at_mean, tf.shape(places)[0], specs)
    directions = tf.scatter_nd(places, directions, tf.shape(h, tf.int64))
    log_probs = tf.scatter_nd(places, log_probs, tf.shape(words, tf.int64))
    m = scaled_tanh(h + mean)
    slope = (1.7159 - m * m / 1.7159) * (2 / 3)  # the derivative of g2, by its value
    offsets = log_probs - tf.reduce_sum(directions * m, axis=-1)
    vectors = tf.reduce_sum(slope * directions, axis=1)
    return Expansion(h, words, directions, log_probs, offsets, vectors)


def word_bounds(expansion: Expansion, sentence: tf.Tensor, images: tf.Tensor) -> tf.Tensor:
    """The highest log P [P, T] of the words of sentence `sentence[p]` by image p of [P, M]."""
    length = tf.shape(expansion.words)[1]

    def bounds(numbers: tf.Tensor) -> tf.Tensor:
        at = tf.gather(sentence, numbers)
        m = scaled_tanh(tf.gather(expansion.h, at) + tf.gather(images, numbers)[:, tf.newaxis])
        products = tf.reduce_sum(m * tf.gather(expansion.directions, at), axis=-1)
        return tf.reshape(tf.gather(expansion.offsets, at) + products, [-1])

    at_once = _images_at_once(expansion, length)
    values = in_blocks(bounds, tf.shape(sentence)[0], FLOATS, at_once)
    return tf.reshape(values, [-1, length])


def bounds(expansion: Expansion, images: tf.Tensor) -> tf.Tensor:
    """The highest log P [S, I] of every sentence by every image a [I, M]."""

    def of_sentence(row: tf.Tensor) -> tf.Tensor:
        length = tf.math.count_nonzero(expansion.words[row], dtype=tf.int32)
        h, directions = expansion.h[row, :length], expansion.directions[row, :length]
        offset = tf.reduce_sum(expansion.offsets[row])

        def of_images(numbers: tf.Tensor) -> tf.Tensor:
            m = scaled_tanh(h[:, tf.newaxis] + tf.gather(images, numbers))  # [T, I, M]
            return offset + tf.reduce_sum(tf.linalg.matvec(m, directions), axis=0)

        at_once = _images_at_once(expansion, length)
        return in_blocks(of_images, tf.shape(images)[0], FLOATS, at_once)

    rows = tf.range(tf.shape(expansion.words)[0])
    values = tf.map_fn(of_sentence, rows, fn_output_signature=FLOATS)
    return tf.reshape(values, [-1, tf.shape(images)[0]])


def _images_at_once(expansion: Expansion, length: tf.Tensor) -> tf.Tensor:
    return tf.maximum(1, _BOUNDS_AT_ONCE // tf.maximum(1, length * tf.shape(expansion.h)[2]))

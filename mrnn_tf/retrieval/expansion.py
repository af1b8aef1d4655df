"""What a sentence says of any image, told from one image: the mean one.

With p the softmax at the mean image and d_t = U_{w_t} - E_p[U], two things follow for an image
a = V_I I, both exact at the mean image and to first order around it:

- an inner product: log P(s|a) is about c_s + v_s (a - mean), with v_s = sum_t g2'(h_t + mean) d_t;
- a bound: log P(w_t|a) <= log P(w_t|mean) + d_t (g2(h_t + a) - g2(h_t + mean)), because the
  logarithm of the softmax's sum is convex in the logits (Jensen's inequality).

The first finds candidates among any number of images, the second leaves out what cannot win: it
costs one row of M where the softmax costs M x V.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from mrnn_tf.model.layers import scaled_tanh
from mrnn_tf.retrieval.scoring import ROWS, Scorer
from mrnn_tf.retrieval.sentences import Sentences

_BOUNDS_AT_ONCE = 2**20  # values of g2(h + a); they stay in the cache


@dataclasses.dataclass(frozen=True)
class Expansion:
    """Sentences around the mean image.

    Attributes:
        h: float [S, T, M], the words' part of the sentences.
        directions: float [S, T, M], d_t; zero at padding.
        log_probs: float [S, T], log P(w_t|mean); zero at padding.
        offsets: float [S, T], log P(w_t|mean) - d_t g2(h_t + mean).
        vectors: float [S, M], v_s.
    """

    h: np.ndarray
    directions: np.ndarray
    log_probs: np.ndarray
    offsets: np.ndarray
    vectors: np.ndarray

    def word_bounds(self, rows: np.ndarray, images: np.ndarray) -> np.ndarray:
        """The highest log P [P, T] of the words of sentence `rows[p]` by image p of [P, M]."""
        some = max(1, _BOUNDS_AT_ONCE // max(1, self.h[0].size))
        parts = [np.zeros((0, self.h.shape[1]), np.float32)]
        for first in range(0, len(rows), some):
            at = rows[first : first + some]
            a = images[first : first + some]
            parts.append(_word_bounds(self.h[at], self.directions[at], self.offsets[at], a).numpy())
        return np.concatenate(parts)

    def bounds(self, images: np.ndarray) -> np.ndarray:
        """The highest log P [S, I] of every sentence by every image a [I, M]."""
        found = np.empty((len(self.h), len(images)), np.float32)
        some = max(1, _BOUNDS_AT_ONCE // max(1, self.h[0].size)) if len(self.h) else 1
        for row in range(len(self.h)):
            length = max(1, np.count_nonzero(self.log_probs[row]))
            h, d = self.h[row, :length], self.directions[row, :length]
            offset = self.offsets[row, :length].sum()
            for first in range(0, len(images), some):
                a = images[first : first + some]
                found[row, first : first + some] = _bounds(h, d, offset, a).numpy()
        return found


def expand(scorer: Scorer, sentences: Sentences, mean: np.ndarray) -> Expansion:
    """Expands sentences at the mean image [M]."""
    h, words = sentences.h, sentences.words
    s, t = np.nonzero(words)
    directions = np.zeros_like(h)
    log_probs, offsets = np.zeros(words.shape, np.float32), np.zeros(words.shape, np.float32)
    vectors = np.zeros((len(h), h.shape[2]), np.float32)
    kernel, bias = tf.convert_to_tensor(scorer.kernel), tf.convert_to_tensor(scorer.bias)
    for first in range(0, len(s), ROWS):
        at = s[first : first + ROWS], t[first : first + ROWS]
        parts = word_expansions(kernel, bias, h[at], words[at], mean)
        directions[at], log_probs[at], offsets[at] = (each.numpy() for each in parts[:3])
        np.add.at(vectors, at[0], parts[3].numpy())
    scorer.rows += len(s)
    return Expansion(h, directions, log_probs, offsets, vectors)


@tf.function(
    input_signature=[
        tf.TensorSpec([None, None]),
        tf.TensorSpec([None]),
        tf.TensorSpec([None, None]),
        tf.TensorSpec([None], tf.int32),
        tf.TensorSpec([None]),
    ]
)
def word_expansions(
    kernel: tf.Tensor, bias: tf.Tensor, h: tf.Tensor, words: tf.Tensor, mean: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """d_t [R, M], log P(w_t|mean) and the bound's offset [R], and g2'(h_t + mean) d_t [R, M]."""
    m = scaled_tanh(h + mean)
    log_probs = tf.nn.log_softmax(tf.nn.bias_add(tf.matmul(m, kernel), bias))
    own = tf.gather(log_probs, words, batch_dims=1)
    expected = tf.matmul(tf.exp(log_probs), kernel, transpose_b=True)
    directions = tf.transpose(tf.gather(kernel, words, axis=1)) - expected
    slope = (1.7159 - m * m / 1.7159) * (2 / 3)  # the derivative of g2, by its value
    offsets = own - tf.reduce_sum(directions * m, axis=-1)
    return directions, own, offsets, slope * directions


@tf.function(
    input_signature=[
        tf.TensorSpec([None, None]),
        tf.TensorSpec([None, None]),
        tf.TensorSpec([]),
        tf.TensorSpec([None, None]),
    ]
)
def _bounds(h, directions, offset, images):
    m = scaled_tanh(h[:, tf.newaxis] + images)  # [T, I, M]
    return offset + tf.reduce_sum(tf.linalg.matvec(m, directions), axis=0)


@tf.function(
    input_signature=[
        tf.TensorSpec([None, None, None]),
        tf.TensorSpec([None, None, None]),
        tf.TensorSpec([None, None]),
        tf.TensorSpec([None, None]),
    ]
)
def _word_bounds(h, directions, offsets, images):
    m = scaled_tanh(h + images[:, tf.newaxis])
    return offsets + tf.reduce_sum(m * directions, axis=-1)

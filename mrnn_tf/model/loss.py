"""The cost of the paper, in bits: sums over words, never means over batches.

The cost (Eq. 6) of a set of sentences is `bits / words + weight * l2(model)`, with the
sums of `word_costs` over the whole set; its perplexity (Eq. 5) is `perplexity(bits, words)`.
"""

import math

import keras
import tensorflow as tf

from mrnn_tf import schema


def sentence_costs(logits: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """-log2 P(sentence) [B] and the number of its words with the end token [B].

    Logits are [B, T, V], targets [B, T]; padding costs nothing.
    """
    nats = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)
    is_word = tf.not_equal(targets, schema.PAD_ID)
    bits = tf.where(is_word, nats, 0.0) / math.log(2.0)
    return tf.reduce_sum(bits, axis=-1), tf.reduce_sum(tf.cast(is_word, bits.dtype), axis=-1)


def word_costs(logits: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """-log2 P of all words of a batch together, and their number: two scalars."""
    bits, words = sentence_costs(logits, targets)
    return tf.reduce_sum(bits), tf.reduce_sum(words)


def perplexity(bits, words):
    """2 to the bits per word, Eq. 5; of one sentence or of a whole set."""
    return 2.0 ** (bits / words)


def l2(model: keras.Model) -> tf.Tensor:
    """||theta||^2 over all trainable parameters."""
    return tf.add_n([tf.reduce_sum(tf.square(weight)) for weight in model.trainable_variables])

"""Sentences as the model reads them: their part of every word is the same for all images."""

from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.errors import UserError
from mrnn_tf.model.mrnn import MRNN


class EncodedSentences(NamedTuple):
    """Sentences read word by word, padded on the right.

    `h[s, t]` is what the words before word t of sentence s say, and `words[s, t]` is the word that
    follows; the end token is the last one.
    """

    h: tf.Tensor  # float32 [S, T, M]
    words: tf.Tensor  # int32 [S, T], padded with `schema.PAD_ID`


def check_searchable(model: MRNN) -> None:
    """Refuses a variant whose sentences cannot be read without an image, or that sees none."""
    refused = f"The variant `{model.config.variant}` cannot be searched or indexed: "
    if model.wiring.recurrence_sees_image:
        raise UserError(
            refused + "its recurrence sees the image, which sentences are read without."
        )
    if not model.wiring.image_to:
        raise UserError(refused + "it sees no image.")


def pad(ids: Sequence[Sequence[int]]) -> np.ndarray:
    """Word ids with the end token as an array [S, T]."""
    ended = [[*sentence, schema.END_ID] for sentence in ids]
    longest = max(map(len, ended), default=1)
    return keras.utils.pad_sequences(ended, longest, padding="post", value=schema.PAD_ID)


def read(model: MRNN, words: tf.Tensor) -> EncodedSentences:
    """Reads padded sentences [S, T] that end with the end token, as `pad` makes them.

    Padding that none of them needs is left out.
    """
    longest = tf.reduce_max(tf.math.count_nonzero(words, axis=1, dtype=tf.int32))
    words = words[:, : tf.maximum(1, longest)]
    starts = tf.fill([tf.shape(words)[0], 1], schema.START_ID)
    h = model.word_part(tf.concat([starts, words[:, :-1]], axis=1))
    return EncodedSentences(h, words)


def prefixes(words: np.ndarray) -> np.ndarray:
    """Numbers [S, T] of what stands before every word: equal where the words before are equal."""
    numbers, (count, longest) = np.zeros(words.shape, np.int64), words.shape
    for t in range(1, longest):
        read = numbers[:, t - 1] * (1 + words.max()) + words[:, t - 1]
        numbers[:, t] = np.unique(read, return_inverse=True)[1]
    return numbers + count * np.arange(longest)

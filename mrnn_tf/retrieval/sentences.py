"""Sentences as the model reads them: their part of every word is the same for all images."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

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
    variant = model.config.variant
    if model.wiring.recurrence_sees_image:
        raise UserError(
            f"The variant `{variant}` cannot be searched or indexed: its recurrence sees the "
            "image, so no sentence can be read once for all images."
        )
    if not model.wiring.image_to:
        raise UserError(f"The variant `{variant}` cannot be searched: it sees no image.")


def pad(ids: Sequence[Sequence[int]]) -> np.ndarray:
    """Word ids with the end token as an array [S, T]."""
    lengths = [len(sentence) + 1 for sentence in ids]
    words = np.full((len(ids), max(lengths, default=1)), schema.PAD_ID, np.int32)
    for row, (sentence, length) in enumerate(zip(ids, lengths, strict=True)):
        words[row, :length] = [*sentence, schema.END_ID]
    return words


def read(model: MRNN, words: tf.Tensor) -> EncodedSentences:
    """Reads padded sentences [S, T] that end with the end token, as `pad` makes them.

    Padding that none of them needs is left out.
    """
    longest = tf.reduce_max(tf.math.count_nonzero(words, axis=1, dtype=tf.int32))
    words = words[:, : tf.maximum(1, longest)]
    starts = tf.fill([tf.shape(words)[0], 1], schema.START_ID)
    h = model.word_part(tf.concat([starts, words[:, :-1]], axis=1))
    return EncodedSentences(h, words)


def blocks(words: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """The sentences [S, T] in blocks of neighbours by their words, which share their prefixes."""
    order = np.lexsort(words.T[::-1])
    for first in range(0, len(order), size):
        yield order[first : first + size]


def prefix_tree(words: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The different beginnings of sentences [S, T], and the words that follow them.

    Returns:
        prefixes: int [P, 2], a sentence and a position in it for every different beginning.
        edges: int [E, 2], a prefix and a word that follows it, by prefix.
        paths: int [S, T], the edge of every word; E at padding.
    """
    size = int(words.max(initial=0)) + 1
    prefixes, edges = [np.zeros((min(1, len(words)), 2), np.int64)], []
    paths = np.full(words.shape, -1, np.int64)
    node = np.zeros(len(words), np.int64)
    prefix_count, edge_count = 1, 0
    for t in range(words.shape[1]):
        alive = np.flatnonzero(words[:, t] != schema.PAD_ID)
        keys, first, inverse = np.unique(
            node[alive] * size + words[alive, t], return_index=True, return_inverse=True
        )
        edges.append(np.stack(np.divmod(keys, size), axis=1))
        paths[alive, t] = edge_count + inverse
        edge_count += len(keys)
        goes_on = keys % size != schema.END_ID
        number = np.full(len(keys), -1)
        number[goes_on] = prefix_count + np.arange(goes_on.sum())
        node[alive] = number[inverse]
        prefix_count += goes_on.sum()
        owners = alive[first[goes_on]]
        prefixes.append(np.stack([owners, np.full(len(owners), t + 1)], axis=1))
    paths[paths < 0] = edge_count
    return np.concatenate(prefixes), np.concatenate(edges), paths

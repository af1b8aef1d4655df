"""Sentences as the model reads them: their part of every word is the same for all images."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.errors import UserError
from mrnn_tf.model.mrnn import MRNN

_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Sentences read word by word, padded on the right.

    `h[s, t]` is what the words before word t of sentence s say, and `words[s, t]` is the word that
    follows; the end sign is the last one.
    """

    h: np.ndarray  # float32 [S, T, M]
    words: np.ndarray  # int32 [S, T], padded with `schema.PAD_ID`

    def __len__(self) -> int:
        return len(self.words)

    @property
    def lengths(self) -> np.ndarray:
        """The number of words [S], the end sign counted."""
        return np.count_nonzero(self.words, axis=1)

    def __getitem__(self, chosen) -> "Sentences":
        return Sentences(self.h[chosen], self.words[chosen])


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
    """Word ids with the end sign as an array [S, T]."""
    lengths = [len(each) + 1 for each in ids]
    words = np.full((len(ids), max(lengths, default=1)), schema.PAD_ID, np.int32)
    for row, (each, length) in enumerate(zip(ids, lengths, strict=True)):
        words[row, :length] = [*each, schema.END_ID]
    return words


def read(model: MRNN, words: np.ndarray) -> Sentences:
    """Reads padded sentences [S, T] that end with the end sign, as `pad` makes them.

    Padding that none of them needs is left out.
    """
    check_searchable(model)
    words = words[:, : np.count_nonzero(words, axis=1).max(initial=1)]
    starts = np.full((len(words), 1), schema.START_ID, np.int32)
    inputs = np.concatenate([starts, words[:, :-1]], axis=1)
    parts = [np.zeros((0, words.shape[1], model.multimodal_size), np.float32)]
    for first in range(0, len(words), _AT_ONCE):
        part = tf.constant(inputs[first : first + _AT_ONCE])
        parts.append(model.word_part(part).numpy())
    return Sentences(np.concatenate(parts), words)


def blocks(words: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """The sentences [S, T] in blocks of neighbours by their words, which share their prefixes."""
    order = np.lexsort(words.T[::-1])
    for first in range(0, len(order), size):
        yield order[first : first + size]

"""The n-grams of a corpus of captions, counted once.

N-grams are the nodes of a trie. The first nodes are the words; any other node stands for the words
of its parent and one more, and its key is `parent * number of words + word`. Keys are sorted, so a
node is found by bisection.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from mrnn_tf import text

ORDERS = 4  # n-grams have 1 to 4 words


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The captions of images as word numbers, and what their n-grams weigh."""

    words: tuple[str, ...]  # the distinct ones
    ids: np.ndarray  # int32 [T], the words of all captions
    captions: np.ndarray  # int64 [C + 1], where a caption begins in `ids`; the last is T
    images: np.ndarray  # int64 [I + 1], where the captions of an image begin; the last is C
    # int64 [G - words + 1], of n-grams of two words and more; then the largest int
    keys: np.ndarray
    # float64 [1 + G], the inverse document frequencies log(I / images that have the n-gram); the
    # first is that of an n-gram which none has, taken as one.
    weights: np.ndarray
    norms: np.ndarray  # float64 [C, 4], the length of a caption's tf-idf vector of every order

    @classmethod
    def of(cls, captions: Iterable[Sequence[str]], end: str = "") -> "Corpus":
        """Counts the n-grams of the raw captions of every image, which may have none.

        Every caption gets the word `end`, if there is one.
        """
        captions = list(captions)
        flat = [caption.encode(errors="replace") for texts in captions for caption in texts]
        tokens = text.tokenize(tf.constant(flat, tf.string, [len(flat)]))
        if end:
            tokens = tf.concat([tokens, tf.fill([len(flat), 1], end)], axis=1)
        words, ids = tf.unique(tokens.flat_values, tf.int64)
        ids, splits = ids.numpy(), tokens.row_splits.numpy()
        keys, places, nodes, orders = _trie(ids, splits, len(words))
        sizes = np.array([len(texts) for texts in captions], np.int64)
        owners = np.repeat(np.arange(len(sizes)), sizes)

        # Distinct pairs of a caption and an n-gram, then of an image and an n-gram.
        rows = np.repeat(np.arange(len(flat)), np.diff(splits))[places]
        count = len(orders)
        pairs, counts = np.unique(rows * count + nodes, return_counts=True)
        rows, nodes = np.divmod(pairs, max(count, 1))
        seen = np.unique(owners[rows] * count + nodes)
        frequencies = np.append(1, np.bincount(seen % max(count, 1), minlength=count))
        weights = np.log(max(len(sizes), 1) / frequencies)
        squares = np.square(counts * weights[nodes + 1])
        norms = np.bincount(rows * ORDERS + orders[nodes] - 1, squares, ORDERS * len(flat))
        return cls(
            tuple(word.decode() for word in words.numpy()),
            ids.astype(np.int32),
            splits,
            np.concatenate([[0], np.cumsum(sizes)]),
            np.append(keys, np.iinfo(np.int64).max),
            weights,
            np.sqrt(norms).reshape(-1, ORDERS),
        )

    def __len__(self) -> int:
        """The number of images."""
        return len(self.images) - 1


def _trie(ids: np.ndarray, splits: np.ndarray, words: int) -> tuple[np.ndarray, ...]:
    """Keys of n-grams; where in the text each occurs, and as which node; orders of the nodes."""
    ends = np.repeat(splits[1:], np.diff(splits))
    keys, places, nodes = [np.zeros(0, np.int64)], [np.arange(len(ids))], [ids]
    sizes = [words]
    for n in range(2, ORDERS + 1):
        inside = np.flatnonzero(places[-1] + n <= ends[places[-1]])
        here = places[-1][inside]
        new, inverse = np.unique(nodes[-1][inside] * words + ids[here + n - 1], return_inverse=True)
        keys.append(new)
        places.append(here)
        nodes.append(sum(sizes) + inverse)
        sizes.append(len(new))
    orders = np.repeat(np.arange(1, ORDERS + 1), sizes)
    return np.concatenate(keys), np.concatenate(places), np.concatenate(nodes), orders

"""N-grams of captions, counted once, and the n-grams of sentences to compare with them.

N-grams are the nodes of a trie. The first nodes are the words; any other node stands for the words
of its parent and one more, and its key is `parent * number of words + word`. Keys are sorted, so a
node is found by bisection.
"""

import dataclasses
import functools
import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
import scipy.sparse
import tensorflow as tf

from mrnn_tf import text
from mrnn_tf.metrics import captions as metrics

ORDERS = 4  # n-grams have 1 to 4 words
UNKNOWN = -1  # the node of an n-gram that a corpus does not have


@dataclasses.dataclass(frozen=True)
class Sentences:
    """A few sentences as counts of their n-grams.

    Attributes:
        counts: float [S, U].
        orders: int [U], how many words the n-gram has.
        nodes: int [U], the n-gram in the corpus, or `UNKNOWN`.
        lengths: int [S], in words.
    """

    counts: np.ndarray
    orders: np.ndarray
    nodes: np.ndarray
    lengths: np.ndarray


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The captions of images as counts of their n-grams.

    Attributes:
        words: the distinct words.
        keys: int64 [G - words], of the n-grams of two words and more.
        counts: sparse float [C, G], how often a caption has an n-gram.
        images: int [I + 1], where the captions of an image begin; the last is C.
    """

    words: tuple[str, ...]
    keys: np.ndarray
    counts: scipy.sparse.csr_array
    images: np.ndarray

    @classmethod
    def of(cls, captions: Iterable[Sequence[str]]) -> "Corpus":
        """Counts the n-grams of the raw captions of every image; there may be none."""
        captions = list(captions)
        sizes = [len(some) for some in captions]
        flat = [each.encode(errors="replace") for some in captions for each in some]
        tokens = text.tokenize(tf.constant(flat, tf.string, [len(flat)]))
        words, ids = tf.unique(tokens.flat_values, tf.int64)
        keys, places, nodes = _trie(ids.numpy(), tokens.row_splits.numpy(), len(words))
        rows = tokens.value_rowids().numpy()[places]
        counts = scipy.sparse.csr_array(
            (np.ones(len(rows), np.float32), (rows, nodes)), (len(flat), len(words) + len(keys))
        )
        images = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        return cls(tuple(word.decode() for word in words.numpy()), keys, counts, images)

    def sentences(self, tokenized: Sequence[str]) -> Sentences:
        """Counts the n-grams of sentences whose words are joined by spaces."""
        split = [sentence.split() for sentence in tokenized]
        local, ids = {}, []
        for word in itertools.chain.from_iterable(split):
            ids.append(local.setdefault(word, len(local)))
        lengths = np.array([len(words) for words in split], np.int64)
        splits = np.concatenate([[0], np.cumsum(lengths)])
        keys, places, nodes = _trie(np.array(ids, np.int64), splits, len(local))

        size = len(local) + len(keys)
        rows = np.repeat(np.arange(len(split)), lengths)[places]
        counts = np.bincount(rows * size + nodes, minlength=len(split) * size)
        orders = np.ones(size, np.int64)
        known = np.full(size, UNKNOWN)
        known[: len(local)] = [self._word_ids.get(word, UNKNOWN) for word in local]
        begin = len(local)
        for n in range(2, ORDERS + 1):
            # The n-grams that grow from those of one word less, which are all before `begin`.
            end = len(local) + np.searchsorted(keys, begin * len(local))
            parents, words = np.divmod(keys[begin - len(local) : end - len(local)], len(local) or 1)
            orders[begin:end] = n
            known[begin:end] = self._children(known[parents], known[words])
            begin = end
        return Sentences(counts.reshape(len(split), size).astype(float), orders, known, lengths)

    def rows(self, images: Sequence[int]) -> np.ndarray:
        """The captions of some images, as rows of `counts`."""
        images = np.asarray(images, np.int64)
        begins, sizes = self.images[images], self.images[images + 1] - self.images[images]
        return np.repeat(begins - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())

    def counts_of(self, nodes: np.ndarray, rows: np.ndarray) -> scipy.sparse.csr_array:
        """How often some captions have some n-grams: sparse float [captions, n-grams]."""
        chosen = self.counts[rows]
        known = np.flatnonzero(nodes != UNKNOWN)
        known = known[np.argsort(nodes[known])]
        is_wanted = np.zeros(self.counts.shape[1], bool)
        is_wanted[nodes[known]] = True
        hit = np.flatnonzero(is_wanted[chosen.indices])
        columns = known[np.searchsorted(nodes[known], chosen.indices[hit])]
        return scipy.sparse.csr_array(
            (chosen.data[hit].astype(float), columns, np.searchsorted(hit, chosen.indptr)),
            (len(rows), len(nodes)),
        )

    @functools.cached_property
    def orders(self) -> np.ndarray:
        """How many words every n-gram has."""
        orders = np.ones(self.counts.shape[1], np.int8)
        begin = count = len(self.words)
        for n in range(2, ORDERS + 1):
            orders[begin:] = n
            begin = count + np.searchsorted(self.keys, begin * count)
        return orders

    @functools.cached_property
    def frequencies(self) -> np.ndarray:
        """In the captions of how many images every n-gram is."""
        image = np.repeat(np.arange(len(self.images) - 1), np.diff(self.images))
        entries = np.repeat(image, np.diff(self.counts.indptr)), self.counts.indices
        shape = len(self.images) - 1, self.counts.shape[1]
        seen = scipy.sparse.csr_array((np.ones(len(entries[0]), np.int32), entries), shape)
        return np.bincount(seen.indices, minlength=shape[1])

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """The words of every caption."""
        return self.counts[:, : len(self.words)].sum(axis=1).astype(np.int64)

    @functools.cached_property
    def _word_ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def _children(self, parents: np.ndarray, words: np.ndarray) -> np.ndarray:
        """The nodes of n-grams with one word more."""
        if not len(self.keys):
            return np.full(len(parents), UNKNOWN)
        wanted = parents * len(self.words) + words
        at = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        found = (self.keys[at] == wanted) & (parents != UNKNOWN) & (words != UNKNOWN)
        return np.where(found, len(self.words) + at, UNKNOWN)


def tokenize_lists(texts: Mapping[Hashable, Sequence[str]]) -> dict[Hashable, list[str]]:
    """The words of many lists of texts, joined by spaces, all in one call of the tokeniser."""
    tokenized = iter(metrics.tokenize(itertools.chain.from_iterable(texts.values())))
    return {key: list(itertools.islice(tokenized, len(some))) for key, some in texts.items()}


def _trie(
    ids: np.ndarray, splits: np.ndarray, words: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The keys of all n-grams of sentences, and where in the text each n-gram begins."""
    ends = np.repeat(splits[1:], np.diff(splits))
    keys, places, nodes = [np.zeros(0, np.int64)], [np.arange(len(ids))], [ids]
    size = words
    for n in range(2, ORDERS + 1):
        inside = np.flatnonzero(places[-1] + n <= ends[places[-1]])
        here = places[-1][inside]
        new, inverse = np.unique(nodes[-1][inside] * words + ids[here + n - 1], return_inverse=True)
        keys.append(new)
        places.append(here)
        nodes.append(size + inverse)
        size += len(new)
    return np.concatenate(keys), np.concatenate(places), np.concatenate(nodes)

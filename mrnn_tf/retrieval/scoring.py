"""log P(s|I) of pairs and of whole matrices, with a bounded memory.

The image enters at the multimodal layer only, so a sentence is read once for all images and an
image is projected once for all words: what remains for every word and image is one row of the
softmax. Sentences that begin alike share these rows.
"""

import numpy as np
import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.errors import UserError
from mrnn_tf.model.layers import scaled_tanh
from mrnn_tf.model.mrnn import MRNN
from mrnn_tf.retrieval.sentences import Sentences, check_searchable

ROWS = 2048  # softmax rows at once; they stay in the processor's cache


class Scorer:
    """Scores sentences by images.

    Args:
        model: MRNN.
    """

    def __init__(self, model: MRNN):
        check_searchable(model)
        self.model = model
        self.kernel, self.bias = model.readout()
        self.rows = 0  # softmax rows computed so far
        floats, ints = tf.TensorSpec([None, None]), tf.TensorSpec([None], tf.int32)
        self._next_words = tf.function(self.next_words, input_signature=[floats, floats, ints])
        self._prefixes = tf.function(
            self._score_prefixes, input_signature=[floats, floats, ints, ints]
        )

    def project(self, features: np.ndarray, batch_size: int = 1024) -> np.ndarray:
        """a = V_I I [I, M] of images [I, D]."""
        wanted = self.model.feature_size
        if features.ndim != 2 or features.shape[1] != wanted:
            raise UserError(
                f"`features` must be an array [images, {wanted}]; got {list(features.shape)}."
            )
        parts = [
            self.model.project_image(features[first : first + batch_size])["multimodal"].numpy()
            for first in range(0, len(features), batch_size)
        ]
        return np.concatenate([np.zeros((0, self.model.multimodal_size), np.float32), *parts])

    def logits(self, h: tf.Tensor, a: tf.Tensor) -> tf.Tensor:
        """The logits [R, V] of m = g2(h + a), Eq. 3, for rows h and a [R, M]."""
        return tf.nn.bias_add(tf.matmul(scaled_tanh(h + a), self.kernel), self.bias)

    def next_words(self, h: tf.Tensor, a: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
        """log P [R] of words [R] after what h [R, M] read, by the images a [R, M]."""
        logits = self.logits(h, a)
        chosen = tf.gather(logits, words, batch_dims=1)
        return chosen - tf.reduce_logsumexp(logits, axis=-1)

    def words(self, h: np.ndarray, a: np.ndarray, words: np.ndarray) -> np.ndarray:
        """`next_words` of any number of rows."""
        parts = [np.zeros(0, np.float32)]
        for first in range(0, len(words), ROWS):
            some = slice(first, first + ROWS)
            parts.append(self._next_words(h[some], a[some], words[some]).numpy())
        self.rows += len(words)
        return np.concatenate(parts)

    def pairs(
        self, sentences: Sentences, rows: np.ndarray, images: np.ndarray, columns: np.ndarray
    ) -> np.ndarray:
        """log P [P] of sentence `rows[p]` by image `columns[p]` of images a [I, M]."""
        pair, t = np.nonzero(sentences.words[rows])
        found = np.zeros(len(rows))
        for first in range(0, len(pair), 16 * ROWS):
            some = slice(first, first + 16 * ROWS)
            s, i, at = rows[pair[some]], columns[pair[some]], t[some]
            scores = self.words(sentences.h[s, at], images[i], sentences.words[s, at])
            np.add.at(found, pair[some], scores)
        return found.astype(np.float32)

    def matrix(self, sentences: Sentences, images: np.ndarray) -> np.ndarray:
        """log P [S, I] of every sentence by every image a [I, M]; equal prefixes count once."""
        prefixes, edges, paths = _prefix_tree(sentences.words)
        h = sentences.h[prefixes[:, 0], prefixes[:, 1]]
        scores = np.zeros((len(sentences), len(images)), np.float64)
        per_block = max(1, ROWS // max(1, min(len(images), ROWS)))
        for first_image in range(0, len(images), ROWS):
            a = images[first_image : first_image + ROWS]
            found = np.zeros((len(edges) + 1, len(a)), np.float32)  # the last row is for padding
            for first in range(0, len(h), per_block):
                begin, end = np.searchsorted(edges[:, 0], [first, first + per_block])
                some = h[first : first + per_block]
                prefix = (edges[begin:end, 0] - first).astype(np.int32)
                words = edges[begin:end, 1].astype(np.int32)
                found[begin:end] = self._prefixes(some, a, prefix, words).numpy()
                self.rows += len(some) * len(a)
            for t in range(paths.shape[1]):
                scores[:, first_image : first_image + ROWS] += found[paths[:, t]]
        return scores.astype(np.float32)

    def _score_prefixes(
        self, h: tf.Tensor, a: tf.Tensor, prefix: tf.Tensor, words: tf.Tensor
    ) -> tf.Tensor:
        """log P [E, I] of word `words[e]` after prefix `prefix[e]` of h [P, M] by images a."""
        size, images = h.shape[1] or self.kernel.shape[0], tf.shape(a)[0]
        both = tf.reshape(h[:, tf.newaxis] + a, [-1, size])
        logits = self.logits(both, tf.zeros([], both.dtype))
        norms = tf.reshape(tf.reduce_logsumexp(logits, axis=-1), [-1, images])
        row = prefix[:, tf.newaxis] * images + tf.range(images)
        word = tf.repeat(words[:, tf.newaxis], images, axis=1)
        return tf.gather_nd(logits, tf.stack([row, word], axis=-1)) - tf.gather(norms, prefix)


def _prefix_tree(words: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The different beginnings of sentences [S, T], and the words that follow them.

    Returns:
        prefixes: int [P, 2], a sentence and a place in it for every different beginning.
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

"""The nearest images of images, by the Euclidean distance of features: TensorFlow ops.

An image whose features are not finite has no neighbours and is no neighbour.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from mrnn_tf.config import NEIGHBOURS
from mrnn_tf.errors import UserError
from mrnn_tf.model.layers import scaled_tanh

MISSING = -1  # a neighbour that does not exist
TEMPERATURE = 0.4  # of whitened features, which have one scale in every dataset
_MORE = 16  # candidates beyond those wanted, where equal distances may hide
_BATCH_SIZE = 64
_BLOCK = 8192  # images that are refined at once


class Near(NamedTuple):
    """The nearest images first; where there are fewer than k, the rest is `MISSING`."""

    images: np.ndarray | tf.Tensor  # int64 [Q, k]
    weights: np.ndarray | tf.Tensor  # float [Q, k], what the captions of each count; 0 if missing


class Neighbourhood(tf.Module):
    """The images, features [I, D], among which neighbours are looked for.

    All neighbours count alike, as in the paper. By whitened features, which reranked best on
    Flickr8k, a nearer one counts more.
    """

    def __init__(self, features: np.ndarray, whiten: bool = True):
        super().__init__()
        self._whitening = Whitening(features) if whiten else None
        self._search = NeighbourSearch(self._whitened(features))

    def near(self, features: tf.Tensor, k: int = NEIGHBOURS) -> Near:
        """The neighbours of images [B, D], for a graph."""
        images, distances = self._search.candidates(self._whitened(features), k + _MORE)
        return Near(images[:, :k], self._weights(distances[:, :k]))

    def nearest(
        self, features: np.ndarray, k: int = NEIGHBOURS, own: np.ndarray | None = None
    ) -> Near:
        """The neighbours of images [Q, D]; `own` [Q] are these images, no neighbours of theirs."""
        images, distances = self._search(np.asarray(self._whitened(features)), k + 1)
        is_own = images == np.reshape([MISSING - 1] if own is None else own, [-1, 1])
        others = np.argsort(is_own, axis=1, kind="stable")[:, :k]
        distances = np.take_along_axis(distances, others, axis=1)
        return Near(np.take_along_axis(images, others, axis=1), self._weights(distances).numpy())

    def _whitened(self, features):
        return features if self._whitening is None else self._whitening(features)

    def _weights(self, distances):
        """What neighbours count by their distances [..., k]."""
        if self._whitening is None:
            return tf.cast(tf.math.is_finite(distances), tf.float32)
        return tf.exp(-tf.square(distances) / TEMPERATURE)


class Whitening(tf.Module):
    """Features of length 1 whose principal directions, `size` at most, all count alike.

    In raw features, and in refined ones, a few directions that most photographs share make most of
    the distance.

    Attributes:
        mean: float [D], of the features [I, D] that it is made from.
        directions: float [D, E], the principal ones, each divided by its standard deviation, or by
            more where the images were few.
    """

    def __init__(self, features: np.ndarray, size: int = 256):
        super().__init__()
        unit = _unit(features[np.isfinite(features).all(axis=1)]).numpy()
        if len(unit) < 2:
            raise UserError(f"`features` must be those of two images at least, not {len(unit)}.")
        mean = unit.mean(axis=0)
        variances, directions = np.linalg.eigh(np.cov(unit - mean, rowvar=False))
        kept = np.flatnonzero(variances > 1e-6 * variances[-1])[-size:][::-1]
        # Few images tell little of small variances: these are taken for more than they seem.
        floor = variances.mean() * unit.shape[1] / len(unit)
        directions = directions[:, kept] / np.sqrt(variances[kept] + floor)
        self.mean = tf.Variable(mean, trainable=False)
        self.directions = tf.Variable(directions, trainable=False, dtype=tf.float32)

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        """The whitened features [I, E] of images."""
        return _unit(tf.matmul(_unit(features) - self.mean, self.directions))


class NeighbourSearch(tf.Module):
    """The exact search for the nearest of some images, features [I, D]."""

    def __init__(self, images: np.ndarray):
        super().__init__()
        images = np.asarray(images, np.float32)
        finite = np.isfinite(images).all(axis=1)
        images = np.where(finite[:, np.newaxis], images, 0.0)
        squares = np.where(finite, np.einsum("id,id->i", images, images), np.inf)
        self._images = tf.Variable(images, trainable=False)
        self._squares = tf.Variable(squares, trainable=False)

    def candidates(self, queries: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
        """The nearest images int64 [B, count] of queries [B, D], and their distances.

        The nearest comes first, and of equally near candidates the one with the lower number. Where
        there are fewer images, the rest is `MISSING` and infinitely far.
        """
        squares = self._squares.value()
        is_valid = tf.reduce_all(tf.math.is_finite(queries), axis=1, keepdims=True)
        queries = tf.where(is_valid, queries, 0.0)
        closeness = 2.0 * self._products(queries) - squares
        near = tf.sort(tf.math.top_k(closeness, min(count, squares.shape[0])).indices, axis=1)
        # Not from the product, which is not exact for what lies near.
        far = tf.norm(self._features(near) - queries[:, tf.newaxis], axis=-1)
        far = tf.where(is_valid & tf.math.is_finite(tf.gather(squares, near)), far, np.inf)
        order = tf.argsort(far, axis=1, stable=True)
        near, far = tf.gather(near, order, batch_dims=1), tf.gather(far, order, batch_dims=1)
        near = tf.cast(tf.where(tf.math.is_finite(far), near, MISSING), tf.int64)
        padding = [[0, 0], [0, max(0, count - squares.shape[0])]]
        near = tf.pad(near, padding, constant_values=MISSING)
        return near, tf.pad(far, padding, constant_values=np.inf)

    def __call__(self, queries: np.ndarray, k: int = NEIGHBOURS) -> tuple[np.ndarray, np.ndarray]:
        """As `candidates`, of any number of queries [Q, D], and exact among equally near images."""
        if k < 1:
            raise UserError(f"`k` must be 1 at least, not {k}.")
        if queries.ndim != 2 or queries.shape[1] != self._images.shape[1]:
            raise UserError(
                "`queries` and `images` must be features of one size, [Q, D] and [I, D]; got "
                f"{list(queries.shape)} and {list(self._images.shape)}."
            )
        batches = np.array_split(queries, range(_BATCH_SIZE, len(queries), _BATCH_SIZE))
        near, far = zip(*(self._certain(batch, k) for batch in batches), strict=True)
        return np.concatenate(near), np.concatenate(far)

    def _certain(self, queries, k):
        """The k nearest; asks for more candidates until no image as near as the last is missing."""
        queries, count = tf.constant(queries, tf.float32), k + _MORE
        while True:
            near, far = (values.numpy() for values in self.candidates(queries, count))
            if not (np.isfinite(far[:, -1]) & (far[:, -1] <= far[:, k - 1])).any():
                return near[:, :k], far[:, :k]
            count *= 2

    def _products(self, queries):
        """The inner products [B, I] of queries [B, D] and images."""
        return tf.matmul(queries, self._images, transpose_b=True)

    def _features(self, rows):
        return tf.gather(self._images.value(), rows)  # as `search._dense`: no copy is read


class RefinedSearch(NeighbourSearch):
    """The search by refined features g2(a) of images whose a [I, M] a variable already holds.

    It has no matrix of its own: with tanh as the straight line that fits it best, inner products
    with a choose candidates, of which some more than are wanted are needed. Distances are exact.
    """

    def __init__(self, projections: tf.Variable):
        super(NeighbourSearch, self).__init__()
        self._images, images = projections, projections.value()  # `numpy` would copy them
        squares = np.zeros(images.shape[0], np.float32)
        products, lengths = np.zeros((2, images.shape[1]), np.float32)
        for first in range(0, len(squares), _BLOCK):
            a = images[first : first + _BLOCK]
            a, refined = np.asarray(a), np.asarray(scaled_tanh(a))
            squares[first : first + _BLOCK] = np.einsum("im,im->i", refined, refined)
            products += np.einsum("im,im->m", a, refined)
            lengths += np.einsum("im,im->m", a, a)
        self._squares = tf.Variable(squares, trainable=False)
        slopes = products / np.maximum(lengths, 1e-12)
        self._slopes = tf.Variable(slopes, trainable=False)

    def _products(self, queries):
        return super()._products(queries * self._slopes)

    def _features(self, rows):
        return scaled_tanh(super()._features(rows))


def _unit(features: tf.Tensor) -> tf.Tensor:
    lengths = tf.norm(features, axis=1, keepdims=True)
    return tf.cast(features / tf.maximum(lengths, 1e-12), tf.float32)

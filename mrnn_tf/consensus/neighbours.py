"""The nearest images of images, by the Euclidean distance of features: TensorFlow ops.

An image whose features are not finite has no neighbours and is no neighbour.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from mrnn_tf.errors import UserError

K = 60  # neighbours of an image
MISSING = -1  # a neighbour that does not exist
TEMPERATURE = 0.4  # of `nearness` by whitened features, which have one scale in every dataset
_MORE = 16  # candidates beyond those wanted, where equal distances may hide
_BATCH_SIZE = 64


class Near(NamedTuple):
    """Neighbours int64 [Q, k], nearest first, and what the captions of each count, float [Q, k]."""

    images: np.ndarray | tf.Tensor
    weights: np.ndarray | tf.Tensor


class Neighbourhood(tf.Module):
    """The images among which neighbours are looked for.

    The neighbours count alike, as in the paper, but for whitened features, where a nearer one
    counts more.

    Args:
        features: float [I, D], original or refined.
        whiten: bool. Whether images are near by whitened features, which reranked best on Flickr8k.
    """

    def __init__(self, features: np.ndarray, whiten: bool = True):
        super().__init__()
        self._whitening = Whitening(features) if whiten else None
        self._search = NeighbourSearch(self._whitened(features))

    def near(self, features: tf.Tensor, k: int = K) -> Near:
        """The neighbours of images [B, D], fewer than k where there are fewer; for a graph."""
        images, distances = self._search.candidates(self._whitened(features), k + _MORE)
        return Near(images[:, :k], self._weights(distances[:, :k]))

    def nearest(self, features: np.ndarray, k: int = K, own: np.ndarray | None = None) -> Near:
        """The neighbours of images [Q, D].

        Args:
            features: float [Q, D].
            k: int. Where there are fewer images, the rest is `MISSING` and counts nothing.
            own: int [Q]. Which image the query itself is, and is not its own neighbour.
        """
        own = np.full(len(features), MISSING - 1) if own is None else np.asarray(own)
        images, distances = self._search(np.asarray(self._whitened(features)), k + 1)
        others = np.argsort(images == own[:, np.newaxis], axis=1, kind="stable")[:, :k]
        images, distances = (
            np.take_along_axis(each, others, axis=1) for each in (images, distances)
        )
        return Near(images, np.where(images == MISSING, 0.0, self._weights(distances)))

    def _whitened(self, features):
        return features if self._whitening is None else self._whitening(features)

    def _weights(self, distances):
        return tf.ones_like(distances) if self._whitening is None else nearness(distances)


class Whitening(tf.Module):
    """Features of length 1 whose principal directions all count alike, made from other features.

    In raw features, and in refined ones, a few directions that most photographs share make most of
    the distance.

    Args:
        features: float [I, D], of the images among which neighbours are looked for.
        size: int. The most directions that are kept.

    Attributes:
        mean: float [D].
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
        images are missing, the distance is infinity; there are no more columns than images.
        """
        images, squares = self._images.value(), self._squares.value()
        is_valid = tf.reduce_all(tf.math.is_finite(queries), axis=1, keepdims=True)
        queries = tf.where(is_valid, queries, 0.0)
        closeness = 2.0 * tf.matmul(queries, images, transpose_b=True) - squares
        _, near = tf.math.top_k(closeness, tf.minimum(count, tf.shape(images)[0]))
        near = tf.sort(near, axis=1)
        far = tf.norm(tf.gather(images, near) - queries[:, tf.newaxis], axis=-1)
        far = tf.where(is_valid & tf.math.is_finite(tf.gather(squares, near)), far, np.inf)
        order = tf.argsort(far, axis=1, stable=True)
        near, far = (tf.gather(each, order, batch_dims=1) for each in (near, far))
        return tf.cast(tf.where(tf.math.is_finite(far), near, MISSING), tf.int64), far

    def __call__(self, queries: np.ndarray, k: int = K) -> tuple[np.ndarray, np.ndarray]:
        """The k nearest images of every query, nearest first, equally near ones by their number.

        Args:
            queries: float [Q, D].
            k: int. Where there are fewer images, the rest is `MISSING` and infinitely far.

        Returns:
            Numbers of images int64 [Q, k], and their distances float [Q, k].
        """
        if k < 1:
            raise UserError(f"`k` must be 1 at least, not {k}.")
        if queries.ndim != 2 or queries.shape[1] != self._images.shape[1]:
            raise UserError(
                "`queries` and `images` must be features of one size, [Q, D] and [I, D]; got "
                f"{list(queries.shape)} and {list(self._images.shape)}."
            )
        numbers = np.full((len(queries), k), MISSING, np.int64)
        distances = np.full((len(queries), k), np.inf, np.float32)
        for begin in range(0, len(queries), _BATCH_SIZE):
            batch = slice(begin, begin + _BATCH_SIZE)
            near, far = self._certain(tf.constant(queries[batch], tf.float32), k)
            numbers[batch, : near.shape[1]], distances[batch, : near.shape[1]] = near, far
        return numbers, distances

    def _certain(self, queries, k):
        """The first k candidates, of so many that none as near as the last can be missing."""
        more = _MORE
        while True:
            near, far = (each.numpy() for each in self.candidates(queries, k + more))
            is_open = np.isfinite(far[:, -1:]) & (far[:, -1:] <= far[:, k - 1 : k])
            if k + more >= self._images.shape[0] or not is_open.any():
                return near[:, :k], far[:, :k]
            more *= 2


def nearest(queries: np.ndarray, images: np.ndarray, k: int = K) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest images [I, D] of every query [Q, D]: see `NeighbourSearch`."""
    return NeighbourSearch(images)(queries, k)


def nearness(distances: tf.Tensor, temperature: float = TEMPERATURE) -> tf.Tensor:
    """What neighbours count by their distances [..., k]: exp(-distance^2 / temperature)."""
    if temperature <= 0:
        raise UserError(f"`temperature` must be above 0, not {temperature}.")
    return tf.exp(-tf.square(distances) / temperature)


def _unit(features: tf.Tensor) -> tf.Tensor:
    lengths = tf.norm(features, axis=1, keepdims=True)
    return tf.cast(features / tf.maximum(lengths, 1e-12), tf.float32)

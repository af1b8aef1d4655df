"""Centres of the training images, around which sentences are expanded, and lists of images by them.

Every image belongs to the list of its nearest centre and is estimated there. Images differ along
few axes (on Flickr8k 64 of 512 hold 96 % of the variance), so that the lists hold a sketch of
every image, its coordinates along these axes: an eighth of the memory that a search passes over.
"""

from typing import NamedTuple

import numpy as np

CENTRES, AXES = 4, 64  # chosen by benchmarks/shortlists.py
_ROUNDS = 10
_AT_ONCE = 8192  # images


class Centres(NamedTuple):
    """Points among the training images, and the axes along which these differ most."""

    mean: np.ndarray  # float32 [M]
    points: np.ndarray  # float32 [C, M], the centres
    axes: np.ndarray  # float32 [M, D], orthonormal

    @classmethod
    def of(
        cls, sample: np.ndarray, count: int = CENTRES, axes: int = AXES, seed: int = 0
    ) -> "Centres":
        """The centres of projected training images [n, M], by k-means, and their principal axes.

        The same sample and seed give the same centres. There are as many as there are images, if
        these are fewer.
        """
        sample = np.asarray(sample, np.float32)
        mean = sample.mean(axis=0)
        _, directions = np.linalg.eigh((sample - mean).T @ (sample - mean))
        return cls(mean, _k_means(sample, count, seed), directions[:, ::-1][:, :axes])


class Lists(NamedTuple):
    """Sketches of images in the order of their lists."""

    sketches: np.ndarray  # float32 [I, D], coordinates along the axes from the mean image
    rows: np.ndarray  # int32 [I], which image it is
    ends: np.ndarray  # int32 [C], where the lists end

    @classmethod
    def of(cls, centres: Centres, images: np.ndarray) -> "Lists":
        """The lists of images a [I, M]."""
        nearest = _nearest(images, centres.points)
        rows = np.argsort(nearest, kind="stable").astype(np.int32)
        ends = np.cumsum(np.bincount(nearest, minlength=len(centres.points))).astype(np.int32)
        sketches = np.empty((len(rows), centres.axes.shape[1]), np.float32)
        for first in range(0, len(rows), _AT_ONCE):
            block = slice(first, first + _AT_ONCE)
            sketches[block] = (images[rows[block]] - centres.mean) @ centres.axes
        return cls(sketches, rows, ends)


def _k_means(sample: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Lloyd's algorithm from random images; a centre that no image is nearest to stays."""
    rng = np.random.default_rng(seed)
    points = sample[rng.choice(len(sample), min(count, len(sample)), replace=False)]
    for _ in range(_ROUNDS):
        nearest = _nearest(sample, points)
        for centre in np.unique(nearest):
            points[centre] = sample[nearest == centre].mean(axis=0)
    return points


def _nearest(images: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The nearest point [I] of every image [I, M]."""
    lengths = np.einsum("cm,cm->c", points, points) / 2
    nearest = np.empty(len(images), np.int32)
    for first in range(0, len(images), _AT_ONCE):
        block = slice(first, first + _AT_ONCE)
        nearest[block] = np.argmax(images[block] @ points.T - lengths, axis=1)
    return nearest

"""The nearest images of images, by the Euclidean distance of features.

An image whose features are no finite numbers has no neighbours and is nobody's neighbour.
"""

import dataclasses

import faiss
import numpy as np

from mrnn_tf.errors import UserError

MISSING = -1  # stands for a neighbour that is not there
_MORE = 16  # candidates beyond those wanted, where equal distances may hide
_AT_ONCE = 64  # queries


@dataclasses.dataclass(frozen=True)
class Whitening:
    """Features of length 1 whose principal directions all count alike, made from other features.

    In raw features, and in refined ones, a few directions that most photographs share make most of
    the distance.

    Attributes:
        mean: float [D].
        directions: float [D, E], the principal ones, each divided by its standard deviation, or by
            more where the images were few.
    """

    mean: np.ndarray
    directions: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray, size: int = 256) -> "Whitening":
        """Learns from the features [I, D] of the images among which neighbours are looked for."""
        unit = _unit(features[np.isfinite(features).all(axis=1)])
        if len(unit) < 2:
            raise UserError(f"`features` must be those of two images at least, not {len(unit)}.")
        mean = unit.mean(axis=0)
        variances, directions = np.linalg.eigh(np.cov(unit - mean, rowvar=False))
        kept = np.flatnonzero(variances > 1e-6 * variances[-1])[-size:][::-1]
        # Few images tell little of small variances: these are taken for more than they seem.
        floor = variances.mean() * unit.shape[1] / len(unit)
        scales = np.sqrt(variances[kept] + floor)
        return cls(mean, (directions[:, kept] / scales).astype(np.float32))

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """The whitened features [I, E] of images."""
        return _unit((_unit(features) - self.mean) @ self.directions)


def nearest(queries: np.ndarray, images: np.ndarray, k: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest images of every query, nearest first, equally near ones by their number.

    Args:
        queries: float [Q, D].
        images: float [I, D].
        k: int. Where there are fewer images, the rest is `MISSING` and infinitely far.

    Returns:
        Numbers of images int64 [Q, k], and their distances float [Q, k].
    """
    if k < 1:
        raise UserError(f"`k` must be 1 at least, not {k}.")
    if queries.ndim != 2 or images.ndim != 2 or queries.shape[1] != images.shape[1]:
        raise UserError(
            "`queries` and `images` must be features of one size, [Q, D] and [I, D]; got "
            f"{list(queries.shape)} and {list(images.shape)}."
        )
    found = np.full((len(queries), k), MISSING, np.int64)
    distances = np.full((len(queries), k), np.inf, np.float32)
    usable = np.flatnonzero(np.isfinite(images).all(axis=1))
    asked = np.flatnonzero(np.isfinite(queries).all(axis=1))
    if not len(usable) or not len(asked):
        return found, distances
    index = faiss.IndexFlatL2(images.shape[1])
    kept = np.ascontiguousarray(images[usable], np.float32)
    index.add(kept)
    for some in np.array_split(asked, range(_AT_ONCE, len(asked), _AT_ONCE)):
        near, far = _search(index, kept, np.ascontiguousarray(queries[some], np.float32), k)
        found[some, : near.shape[1]] = usable[near]
        distances[some, : near.shape[1]] = far
    return found, distances


def _search(index, images: np.ndarray, queries: np.ndarray, k: int) -> tuple:
    """As `nearest`; the order of faiss among almost equal distances depends on the batch."""
    k, wanted = min(k, len(images)), k + _MORE
    while True:
        wanted = min(wanted, len(images))
        _, candidates = index.search(queries, wanted)
        candidates.sort(axis=1)
        exact = np.linalg.norm(images[candidates] - queries[:, np.newaxis], axis=-1)
        order = np.argsort(exact, axis=1, kind="stable")
        exact = np.take_along_axis(exact, order, axis=1)
        if wanted == len(images) or np.all(exact[:, -1] > exact[:, k - 1]):
            return np.take_along_axis(candidates, order, axis=1)[:, :k], exact[:, :k]
        wanted *= 2


def _unit(features: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return (features / np.maximum(lengths, 1e-12)).astype(np.float32)

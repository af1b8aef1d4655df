"""Consensus reranking: the hypothesis that says what the captions of similar images say.

The score of a hypothesis is its mean similarity to the m most similar captions among those of the
k nearest training images. `Compared` holds the similarities of one image, from which every k, m and
way of combining follows without comparing again.

>>> corpus = Corpus.of([["a dog runs", "a dog"], ["a red car", "the car"]])
>>> compared = Comparison("bleu", corpus)(["a dog", "a car"], neighbours=np.array([0]))
>>> order(compared.by_neighbours(k=1, m=2))
[0, 1]
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from mrnn_tf.consensus.neighbours import MISSING
from mrnn_tf.consensus.ngrams import Corpus, Sentences
from mrnn_tf.consensus.similarity import SIMILARITIES, Bleu, Cider
from mrnn_tf.errors import UserError

K = 60
M = {"bleu": 175, "sentence_bleu": 175, "cider": 125}
TEMPERATURE = 0.4  # of the nearness by whitened features, which have one scale in every dataset


@dataclasses.dataclass(frozen=True)
class Compared:
    """The hypotheses of an image with all that they are compared with.

    Attributes:
        to_captions: float [N, C], similarities to the captions of the neighbours.
        neighbour: int [C], whose caption it is: 0 is the nearest image.
        weights: float [C], what the caption counts.
        sentences: the hypotheses.
        similarity: what compares them.
    """

    to_captions: np.ndarray
    neighbour: np.ndarray
    weights: np.ndarray
    sentences: Sentences
    similarity: Bleu | Cider

    @functools.cached_property
    def to_each_other(self) -> np.ndarray:
        """The similarities of the hypotheses: float [N, N]."""
        return self.similarity.to_each_other(self.sentences)

    def by_neighbours(self, k: int, m: int) -> np.ndarray:
        """The consensus [N] with the captions of the k nearest images.

        Where they have fewer than m captions, all count; where there are none, all scores are 0.
        """
        if k < 1 or m < 1:
            raise UserError(f"`k` and `m` must be 1 at least, not {k} and {m}.")
        near = self.neighbour < k
        return mean_of_highest(self.to_captions[:, near], self.weights[near], m)

    def by_hypotheses(self) -> np.ndarray:
        """The mean similarity [N] to the other hypotheses; 0 for a single one."""
        count = len(self.to_each_other)
        others = self.to_each_other.sum(axis=1) - np.diagonal(self.to_each_other)
        return others / max(count - 1, 1)

    def by_both(self, k: int, m: int, weight: float) -> np.ndarray:
        """The consensus [N] with neighbours and other hypotheses, which have `weight` of it all."""
        if not 0 <= weight <= 1:
            raise UserError(f"`weight` must be between 0 and 1, not {weight}.")
        return (1 - weight) * self.by_neighbours(k, m) + weight * self.by_hypotheses()


class Comparison:
    """Compares the hypotheses of images with the captions of a corpus.

    Args:
        similarity: str. One of `SIMILARITIES`.
        corpus: `Corpus`. The captions of the images among which the neighbours are.
    """

    def __init__(self, similarity: str, corpus: Corpus):
        if similarity not in SIMILARITIES:
            raise UserError(
                f"`similarity` must be one of {', '.join(SIMILARITIES)}, not {similarity!r}."
            )
        self._corpus = corpus
        self._similarity = SIMILARITIES[similarity](corpus)

    def __call__(
        self,
        hypotheses: Sequence[str],
        neighbours: np.ndarray = (),
        weights: np.ndarray | None = None,
    ) -> Compared:
        """Compares the hypotheses of one image.

        Args:
            hypotheses: the sentences, their words joined by spaces.
            neighbours: int [k]. Images of the corpus, nearest first; `MISSING` ones are left out.
            weights: float [k]. What the captions of each neighbour count; 1 by default.
        """
        neighbours = np.asarray(neighbours, np.int64)
        weights = np.ones(len(neighbours)) if weights is None else weights
        there = np.flatnonzero(neighbours != MISSING)
        sizes = np.diff(self._corpus.images)[neighbours[there]]
        whose = np.repeat(there, sizes)
        sentences = self._corpus.sentences(hypotheses)
        return Compared(
            self._similarity.to_captions(sentences, self._corpus.rows(neighbours[there])),
            whose,
            weights[whose],
            sentences,
            self._similarity,
        )


def nearness(distances: np.ndarray, temperature: float) -> np.ndarray:
    """What neighbours count by their distances [..., k]: exp(-distance^2 / temperature)."""
    if temperature <= 0:
        raise UserError(f"`temperature` must be above 0, not {temperature}.")
    return np.exp(-np.square(distances.astype(float)) / temperature)


def mean_of_highest(similarities: np.ndarray, weights: np.ndarray, m: int) -> np.ndarray:
    """The weighted mean [N] of the m similarities of [N, C] that weigh most and are highest."""
    m = min(m, similarities.shape[1])
    if not m:
        return np.zeros(len(similarities))
    values = similarities * weights
    highest = np.partition(values, values.shape[1] - m, axis=1)[:, values.shape[1] - m :]
    most = np.partition(weights, len(weights) - m)[len(weights) - m :].sum()
    return highest.sum(axis=1) / (most or 1.0)


def order(scores: np.ndarray) -> list[int]:
    """The hypotheses, the best first; of equals the one that was first before."""
    return np.argsort(-scores, kind="stable").tolist()

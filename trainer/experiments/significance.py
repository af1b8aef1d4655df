"""Whether a difference is more than chance: bootstrap over images, Student's t over seeds.

A score of a split is a function of sums over its images: BLEU of n-gram counts, CIDEr and recalls
of a value each. So a resampled split is a product of the weights of its images and their sums.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from pycocoevalcap.bleu.bleu_scorer import cook_refs, cook_test

from mrnn_tf.metrics.captions import tokenize, tokenize_lists

RESAMPLES = 2000
_ORDERS = 4
_SMALL, _TINY = 1e-9, 1e-15  # those of pycocoevalcap


@dataclasses.dataclass(frozen=True)
class PerImage:
    """What a run has on every image: sums [images, n] whose total gives the score.

    The score is the mean of the first column, or BLEU of an order where that is given.
    """

    sums: np.ndarray
    bleu: int | None = None

    @classmethod
    def of_values(cls, values: Sequence[float] | np.ndarray) -> "PerImage":
        values = np.asarray(values, np.float64)
        return cls(np.stack([values, np.ones(len(values))], axis=1))

    @classmethod
    def of_captions(
        cls, references: Mapping[str, Sequence[str]], captions: Mapping[str, str], bleu: int
    ) -> "PerImage":
        """The n-gram counts of captions, as `metrics.captions.evaluate` takes BLEU."""
        words = tokenize_lists(references)
        said = dict(zip(captions, tokenize(captions.values()), strict=True))
        rows = []
        for image, texts in words.items():
            wanted = [text for text in texts if text]
            if not wanted:
                continue
            counts = cook_test(said[image], cook_refs(wanted))
            closest = min((abs(n - counts["testlen"]), n) for n in counts["reflen"])[1]
            rows.append([*counts["correct"], *counts["guess"], counts["testlen"], closest])
        return cls(np.array(rows, np.float64), bleu)

    def __len__(self) -> int:
        return len(self.sums)

    def scores(self, weights: np.ndarray) -> np.ndarray:
        """The scores [B] of the images with weights [B, images]."""
        sums = weights @ self.sums
        if self.bleu is None:
            return sums[:, 0] / sums[:, 1]
        correct, guesses = sums[:, :_ORDERS], sums[:, _ORDERS : 2 * _ORDERS]
        precisions = np.log((correct + _TINY) / (guesses + _SMALL))[:, : self.bleu]
        ratio = (sums[:, -2] + _TINY) / (sums[:, -1] + _SMALL)
        return np.exp(precisions.mean(axis=1) + np.minimum(0.0, 1 - 1 / ratio))

    @property
    def score(self) -> float:
        return float(self.scores(np.ones((1, len(self))))[0])


@dataclasses.dataclass(frozen=True)
class Difference:
    """How much higher the first of two sides is, with its 95 % interval."""

    first: float
    second: float
    low: float
    high: float
    p: float  # that the difference is none, two-sided
    seeds: int  # of the side with fewer
    images: int

    @property
    def value(self) -> float:
        return self.first - self.second


def bootstrap(
    first: Sequence[PerImage], second: Sequence[PerImage], paired: bool, seed: int = 0
) -> Difference:
    """Compares the runs of two sides on the same images, one of each seed.

    Every resample draws images, the same for all runs. Three seeds are too few to be resampled:
    what they add is drawn from Student's t, by the spread of the differences where both sides are
    measured on the same runs (`paired`), or else by one spread that both sides share.
    """
    rng, images = np.random.default_rng(seed), len(first[0])
    weights = rng.multinomial(images, np.full(images, 1 / images), RESAMPLES).astype(np.float64)
    means = [np.mean([run.scores(weights) for run in side], axis=0) for side in (first, second)]
    error, freedom = _seed_error(*([run.score for run in side] for side in (first, second)), paired)
    differences = means[0] - means[1]
    if freedom:
        differences += error * rng.standard_t(freedom, RESAMPLES)
    low, high = np.quantile(differences, [0.025, 0.975])
    p = 2 * min((differences <= 0).mean(), (differences >= 0).mean())
    scores = (float(np.mean([run.score for run in side])) for side in (first, second))
    seeds = min(len(first), len(second))
    return Difference(
        *scores, float(low), float(high), min(1.0, max(p, 1 / RESAMPLES)), seeds, images
    )


def _seed_error(first: Sequence[float], second: Sequence[float], paired: bool) -> tuple[float, int]:
    """The standard error of a difference of means over seeds, and its degrees of freedom.

    It is 0 where a side has one seed: its spread is not known.
    """
    sides = [np.subtract(first, second)] if paired else [np.array(first), np.array(second)]
    freedom = sum(len(side) - 1 for side in sides)
    if min(map(len, sides)) < 2:
        return 0.0, 0
    squares = sum(float(np.square(side - side.mean()).sum()) for side in sides)
    return math.sqrt(squares / freedom * sum(1 / len(side) for side in sides)), freedom


def seed_count(seeds: int) -> str:
    return "1 seed" if seeds == 1 else f"{seeds} seeds"


def permutation_p(first: Sequence[float], second: Sequence[float]) -> float:
    """How often a division of the values into two sides has a mean difference as large, exactly."""
    values, size = [*first, *second], len(first)
    observed = np.mean(first) - np.mean(second)
    divisions = list(itertools.combinations(range(len(values)), size))
    as_large = 0
    for chosen in divisions:
        ours = sum(values[i] for i in chosen)
        theirs = math.fsum(values) - ours
        as_large += ours / size - theirs / (len(values) - size) >= observed - 1e-12
    return as_large / len(divisions)

"""Tests of significance, against pycocoevalcap and against what is known of simple samples."""

import numpy as np
import pytest

from mrnn_tf.metrics import captions
from trainer.experiments.claims import FAILS, HOLDS, OPEN, judge
from trainer.experiments.significance import (
    Difference,
    PerImage,
    bootstrap,
    permutation_p,
    seed_count,
)

REFERENCES = {
    "1": ["A red dog runs on the grass.", "a dog running"],
    "2": ["two men sit on a bench", "two people sitting outside on a wooden bench"],
    "3": ["a boat on the water"],
}
CAPTIONS = {"1": "a dog runs on the grass", "2": "two men sit on a wall", "3": "a red boat"}


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_bleu_is_that_of_the_metrics(order):
    expected = captions.evaluate(REFERENCES, CAPTIONS, meteor=False).overall[f"bleu_{order}"]
    assert PerImage.of_captions(REFERENCES, CAPTIONS, order).score == pytest.approx(expected)


def test_a_resampled_split_has_the_bleu_of_its_images():
    weights = np.array([[2.0, 0.0, 1.0]])
    twice = {"1": REFERENCES["1"], "1b": REFERENCES["1"], "3": REFERENCES["3"]}
    said = {"1": CAPTIONS["1"], "1b": CAPTIONS["1"], "3": CAPTIONS["3"]}
    expected = captions.evaluate(twice, said, meteor=False).overall["bleu_2"]
    found = PerImage.of_captions(REFERENCES, CAPTIONS, 2).scores(weights)
    assert found[0] == pytest.approx(expected)


def values(mean, seeds, spread=0.0, images=400):
    rng = np.random.default_rng(1)
    noise = rng.normal(0, 1, images)  # of the images, the same for all runs
    return [PerImage.of_values(mean + spread * i + noise) for i in range(seeds)]


def test_the_images_that_both_sides_share_do_not_blur_the_difference():
    found = bootstrap(values(0.1, 3), values(0.0, 3), paired=False)
    assert found.value == pytest.approx(0.1) and found.low == pytest.approx(found.high)
    assert found.p < 0.01 and (found.seeds, found.images) == (3, 400)


def test_the_spread_of_seeds_counts_unless_the_runs_are_the_same():
    apart = bootstrap(values(0.1, 3, spread=0.2), values(0.0, 3, spread=0.2), paired=False)
    assert apart.low < 0 < apart.high and apart.p > 0.1
    same = bootstrap(values(0.1, 3, spread=0.2), values(0.0, 3, spread=0.2), paired=True)
    assert same.low == pytest.approx(0.1) and same.high == pytest.approx(0.1)


def test_one_seed_has_no_spread():
    found = bootstrap(values(0.1, 1), values(0.0, 2, spread=0.2), paired=False)
    assert found.high - found.low == pytest.approx(0.0, abs=1e-9) and found.seeds == 1


@pytest.mark.parametrize("paired", [False, True])
def test_three_seeds_cover_the_truth_as_often_as_they_say(paired):
    rng, covered = np.random.default_rng(0), 0
    for trial in range(200):
        sides = [
            [PerImage.of_values(rng.normal(0, 0.01) + np.zeros(20)) for _ in range(3)]
            for _ in range(2)
        ]
        found = bootstrap(*sides, paired, seed=trial)
        covered += found.low <= 0 <= found.high
    assert 180 <= covered <= 198


def test_an_interval_covers_the_truth_about_as_often_as_it_says():
    rng, covered = np.random.default_rng(0), 0
    for trial in range(60):
        first, second = rng.normal(0.2, 1, 100), rng.normal(0.0, 1, 100)
        found = bootstrap(
            [PerImage.of_values(first)], [PerImage.of_values(second)], True, seed=trial
        )
        covered += found.low <= 0.2 <= found.high
    assert covered >= 51


def test_permutations_are_counted_exactly():
    assert permutation_p([4.0, 5.0, 6.0], [1.0, 2.0, 3.0]) == pytest.approx(1 / 20)
    assert permutation_p([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]) == 1.0
    assert permutation_p([1.0], [1.0]) == 1.0


@pytest.mark.parametrize(
    ("low", "high", "size", "seeds", "verdict"),
    [
        (0.02, 0.06, 0.05, 3, HOLDS),
        (0.02, 0.04, 0.05, 3, HOLDS),  # smaller than reported, but more than half of it
        (0.001, 0.03, 0.05, 3, OPEN),  # may be half of it
        (0.001, 0.02, 0.05, 3, FAILS),  # better, but by less than half
        (-0.03, -0.01, 0.05, 3, FAILS),
        (-0.01, 0.04, 0.05, 3, OPEN),
        (0.02, 0.06, 0.05, 2, OPEN),
        (0.001, 0.002, 0.0, 3, HOLDS),  # the paper gives no size
        (-0.002, -0.001, 0.0, 3, FAILS),
    ],
)
def test_a_verdict_follows_from_the_interval(low, high, size, seeds, verdict):
    found = Difference(1.0, 1.0 - (low + high) / 2, low, high, 0.01, seeds, 100)
    assert judge(found, size)[0] == verdict


def test_seeds_are_counted_in_words():
    assert (seed_count(1), seed_count(3)) == ("1 seed", "3 seeds")

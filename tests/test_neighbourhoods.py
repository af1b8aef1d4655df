"""Which features find better neighbours, on a dataset whose captions follow from the features."""

import dataclasses
import types

import numpy as np
import pytest

from mrnn_tf.errors import UserError
from mrnn_tf.run import Run
from mrnn_tf.split import Split
from trainer.evaluation.neighbours import compare_neighbours


@pytest.fixture(scope="module")
def run(tiny_job):
    return Run.load(tiny_job)


@pytest.fixture(scope="module")
def splits(run, tiny_data):
    return Split.read(run, tiny_data, "val"), Split.read(run, tiny_data, "train")


def test_neighbours_that_show_the_same_agree(run, splits):
    near = compare_neighbours(run, *splits, k=2)  # every thing of a colour is there twice
    everything = compare_neighbours(run, *splits, k=24)
    assert [*near.figures] == ["original", "refined", "whitened"]
    for kind in near.figures:
        agreement = near.figures[kind]["agreement"]
        assert agreement > 2 * everything.figures[kind]["agreement"] > 0
        assert agreement == pytest.approx(np.mean([*near.agreement[kind].values()]))
        assert [*near.agreement[kind]] == [*splits[0].ids]
    assert len(near.examples) == 6
    image, found = near.examples[0]
    assert image == splits[0].ids[0] and all(len(ids) == 2 for ids in found.values())
    assert {*found["refined"]} == {"train-0.jpg", "train-12.jpg"}  # which show what it shows


def test_worse_features_find_worse_neighbours(run, splits):
    split, training = splits
    rng = np.random.default_rng(0)
    blurred = [
        dataclasses.replace(s, features=s.features + rng.normal(0, 2, s.features.shape).astype("f"))
        for s in splits
    ]
    good = compare_neighbours(run, split, training, k=2).figures["original"]["agreement"]
    assert compare_neighbours(run, *blurred, k=2).figures["original"]["agreement"] < good


def test_a_model_that_refines_nothing_has_the_encoder_s_features_alone(run, splits):
    model = types.SimpleNamespace(
        wiring=types.SimpleNamespace(image_to=("start",)), comparable=lambda features: features
    )
    other = dataclasses.replace(run, network=types.SimpleNamespace(model=model))
    assert [*compare_neighbours(other, *splits, k=2).figures] == ["original"]


def test_images_without_captions_are_refused(run, splits):
    silent = dataclasses.replace(splits[0], captions=((),) * len(splits[0]))
    with pytest.raises(UserError, match="'val' holds no captions to compare"):
        compare_neighbours(run, silent, splits[1])

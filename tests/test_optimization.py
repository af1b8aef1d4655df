import numpy as np
import pytest

from mrnn_tf.config import TrainConfig
from trainer import optimization


def rates(kind, steps, warmup=0):
    schedule = optimization.LearningRate(kind, 2.0, warmup, 100)
    return [float(schedule(step)) for step in steps]


def test_courses_of_the_learning_rate():
    assert rates("constant", [0, 50, 99]) == [2.0, 2.0, 2.0]
    np.testing.assert_allclose(rates("cosine", [0, 50, 100]), [2.0, 1.0, 0.0], atol=1e-6)


def test_the_warm_up_rises_to_the_peak():
    np.testing.assert_allclose(rates("constant", [0, 4, 9, 50], 10), [0.2, 1.0, 2.0, 2.0])


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_the_optimizer_is_the_configured_one(name):
    optimizer = optimization.create(TrainConfig(optimizer=name), 0.5, 10)
    assert type(optimizer).__name__.lower() == name


def test_the_warm_up_of_a_short_run_is_a_fifth_of_it():
    optimizers = [optimization.create(TrainConfig(), 1e-3, steps) for steps in (50, 5000)]
    first = [float(optimizer.learning_rate) for optimizer in optimizers]
    np.testing.assert_allclose(first, [1e-3 / 10, 1e-3 / 100], rtol=1e-3)

"""Optimizers and learning rates of a run."""

import math

import keras
from keras import ops

from mrnn_tf.config import TrainConfig


def create(config: TrainConfig, learning_rate: float, steps: int) -> keras.optimizers.Optimizer:
    """The configured optimizer; clipping is the training step's work, after the all-reduce."""
    warmup = min(config.warmup_steps, steps // 5)  # or a short run would be over before it
    rate = LearningRate(config.schedule, learning_rate, warmup, steps)
    if config.optimizer == "sgd":
        return keras.optimizers.SGD(rate, momentum=config.momentum)
    return keras.optimizers.Adam(rate)


class LearningRate(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up; then `constant` stays, and `cosine` falls to zero at the end of the run."""

    def __init__(self, kind: str, peak: float, warmup_steps: int, steps: int):
        self.kind, self.peak, self.warmup_steps, self.steps = kind, peak, warmup_steps, steps

    def __call__(self, step):
        step = ops.cast(step, "float32")
        warmup = ops.minimum(1.0, (step + 1) / max(self.warmup_steps, 1))
        course = 1.0
        if self.kind == "cosine":
            course = 0.5 * (1 + ops.cos(ops.minimum(step / self.steps, 1.0) * math.pi))
        return self.peak * warmup * course

"""Checkpoints of a run, made so that it continues as if it had never been stopped.

Two kinds of files lie in the directory, both named by the step: `model-<step>`, written by the
chief (weights, optimizers, progress), and `iterator-<worker>-<step>`, written by every worker (its
place in the data). A kill may fall between two of them, so a run resumes from the newest step of
which all files are there; the older pair is kept until the newer one is whole.
"""

import tempfile
from collections.abc import Iterable

import tensorflow as tf

from mrnn_tf.run import checkpoint_steps

_KEPT = 2


class Checkpoints:
    """Saves and restores a run.

    Args:
        directory: str. Shared by all workers.
        state: dict of trackable objects that the chief saves; `network` is one of them.
        iterator: tf.data.Iterator. This worker's own.
        workers, worker: int. How many there are, and which this is; 0 is the chief.
    """

    def __init__(self, directory: str, state: dict, iterator, workers: int = 1, worker: int = 0):
        self._directory = directory
        self._state = tf.train.Checkpoint(**state)
        self._network = tf.train.Checkpoint(network=state["network"])
        self._iterator = tf.train.Checkpoint(iterator=iterator)
        self._workers, self._worker = workers, worker
        # Saving distributed variables is everybody's work; only the chief's result is kept.
        self._scratch = None if worker == 0 else tempfile.mkdtemp(prefix="mrnn-worker-")
        tf.io.gfile.makedirs(directory)

    def save(self, step: int) -> str:
        """Writes the files of a step, then drops the oldest; returns the chief's path."""
        self._iterator.write(self._path(f"iterator-{self._worker}", step))
        path = self._path("model", step)
        if self._scratch:
            self._state.write(f"{self._scratch}/model")
        else:
            self._state.write(path)
            _drop_old(self._directory, "model", _KEPT)
        _drop_old(self._directory, f"iterator-{self._worker}", _KEPT)
        return path

    def save_best(self, step: int) -> None:
        """Keeps the weights of the best step so far beside the latest."""
        path = self._path("best", step) if self._worker == 0 else f"{self._scratch}/best"
        self._network.write(path)
        if self._worker == 0:
            _drop_old(self._directory, "best", 1)

    def restore(self) -> str | None:
        """Restores the newest whole step; returns the chief's path, or `None` on a new run."""
        kinds = ["model", *(f"iterator-{worker}" for worker in range(self._workers))]
        steps = {kind: set(checkpoint_steps(self._directory, kind)) for kind in kinds}
        whole = set.intersection(*steps.values())
        if not whole and len(steps["model"]) > 1:
            raise ValueError(
                f"{self._directory} holds checkpoints, but none of {self._workers} workers: go on "
                "with as many workers as the run began with."
            )
        step = max(whole, default=0)
        if whole:
            self._read(step)
        # What a kill left beyond this step would push out good files later.
        for kind in kinds if self._worker == 0 else []:
            _drop(self._directory, kind, [each for each in steps[kind] if each > step])
        return self._path("model", step) if whole else None

    def _read(self, step: int) -> None:
        path = self._path("model", step)
        try:
            self._state.read(path).assert_existing_objects_matched()
        except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
            raise ValueError(f"{path} is the checkpoint of another run: {error}") from error
        self._iterator.read(self._path(f"iterator-{self._worker}", step)).assert_consumed()

    def _path(self, kind: str, step: int) -> str:
        return tf.io.gfile.join(self._directory, f"{kind}-{step:08d}")


def _drop_old(directory: str, kind: str, kept: int) -> None:
    _drop(directory, kind, checkpoint_steps(directory, kind)[:-kept])


def _drop(directory: str, kind: str, steps: Iterable[int]) -> None:
    for step in steps:
        prefix = tf.io.gfile.join(directory, f"{kind}-{step:08d}")
        for path in [prefix + ".index", *tf.io.gfile.glob(prefix + ".data-*")]:
            tf.io.gfile.remove(path)

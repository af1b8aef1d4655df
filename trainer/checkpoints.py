"""Checkpoints of a run, made so that it continues as if it had never been stopped.

Two kinds of files lie in the directory, both named by the step: `model-<step>`, written by the
chief (weights, optimizers, progress), and `iterator-<worker>-<step>`, written by every worker (its
place in the data). A kill may fall between two of them, so a run resumes from the newest step of
which all files are there; the older pair is kept until the newer one is whole.
"""

import os
import re
from collections.abc import Collection

import tensorflow as tf

from mrnn_tf import checksums
from mrnn_tf.errors import UserError
from mrnn_tf.run import checkpoint_steps, naming_damage

SCRATCH = "ram://scratch"
_KEPT = 2
# TensorFlow checks the tensors of a checkpoint, but decodes a place in the data before it does.
_CHECKSUMS = ".checksums"


class Checkpoints:
    """Saves and restores a run.

    The directory is shared by all workers. The chief, worker 0, saves the trackable objects of
    `state`, `network` among them; the iterator is this worker's own.
    """

    def __init__(self, directory: str, state: dict, iterator, workers: int = 1, worker: int = 0):
        self._directory = self._results = directory
        if worker > 0:
            # Saving distributed variables is everybody's work, but only the chief's result is
            # kept: the others write to their memory, which leaves nothing behind when they end.
            self._results = SCRATCH
            tf.io.gfile.makedirs(SCRATCH)
        self._state = tf.train.Checkpoint(**state)
        self._network = tf.train.Checkpoint(network=state["network"])
        self._iterator = tf.train.Checkpoint(iterator=iterator)
        self._workers, self._own = workers, f"iterator-{worker}"

    def save(self, step: int) -> str:
        """Writes the files of a step, then drops the oldest; returns the chief's path."""
        own = _path(self._directory, self._own, step)
        self._iterator.write(own)
        names = map(os.path.basename, tf.io.gfile.glob(f"{own}.*"))
        checksums.write(own + _CHECKSUMS, {}, self._directory, names)
        self._state.write(_path(self._results, "model", step))
        for directory, kind in ((self._results, "model"), (self._directory, self._own)):
            _keep(directory, kind, checkpoint_steps(directory, kind)[-_KEPT:])
        return _path(self._directory, "model", step)

    def save_best(self, step: int) -> None:
        """Keeps the weights of the best step so far beside the latest."""
        self._network.write(_path(self._results, "best", step))
        _keep(self._results, "best", [step])

    def restore(self) -> str | None:
        """Restores the newest whole step; returns the chief's path, or `None` on a new run."""
        kinds = ["model", *(f"iterator-{worker}" for worker in range(self._workers))]
        steps = {kind: set(checkpoint_steps(self._directory, kind)) for kind in kinds}
        whole = set.intersection(*steps.values())
        more_workers = checkpoint_steps(self._directory, f"iterator-{self._workers}")
        if more_workers or (not whole and len(steps["model"]) > 1):
            raise UserError(
                f"{self._directory} holds checkpoints, but none of {self._workers} workers: go on "
                "with as many workers as the run began with."
            )
        path = None
        if whole:
            path = _path(self._directory, "model", max(whole))
            with naming_damage(path):
                try:
                    # Partial: an earlier version may have saved more.
                    self._state.read(path).assert_existing_objects_matched().expect_partial()
                except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
                    raise UserError(f"{path} is the checkpoint of another run: {error}") from error
            own = _path(self._directory, self._own, max(whole))
            with naming_damage(own):
                if tf.io.gfile.exists(own + _CHECKSUMS):  # not in earlier releases
                    remedy = f"delete the files {own}.*, and the run goes on from an earlier step"
                    sums = checksums.read(own + _CHECKSUMS, "", self._directory, remedy)[1]
                    sums.check()
                self._iterator.read(own).assert_consumed()
        for kind in kinds:
            _keep(self._results, kind, whole)  # the others would push out good files later
        return path


def _path(directory: str, kind: str, step: int) -> str:
    return tf.io.gfile.join(directory, f"{kind}-{step:08d}")


def _keep(directory: str, kind: str, steps: Collection[int]) -> None:
    """Drops the files of all other steps: old ones, and what a kill left of them."""
    paths = tf.io.gfile.glob(tf.io.gfile.join(directory, f"{kind}-*"))
    for path in sorted(paths, reverse=True):  # an index, which makes a checkpoint whole, first
        match = re.fullmatch(rf"{kind}-(\d{{8}})[._].*", os.path.basename(path))
        if match and int(match[1]) not in steps:
            drop = tf.io.gfile.rmtree if tf.io.gfile.isdir(path) else tf.io.gfile.remove
            drop(path)

"""Trains a model on records, on one device, several, or several workers (TF_CONFIG).

Example:

    python -m trainer.task --data data/flickr8k --job_dir runs/first --preset paper

Every field of the configuration is a flag and overrides the preset. The same command continues a
stopped run. Exit codes: 0 finished; 75 start it again: SIGTERM or Ctrl-C came and all is saved, or
another worker was lost; 130 it came twice; 1 an error that starting again would not mend.
"""

import importlib

from absl import flags

from mrnn_tf import program
from mrnn_tf.config import ModelConfig, TrainConfig
from trainer.options import TaskOptions

if __name__ == "__main__":  # before all other imports: --help needs no TensorFlow
    program.define_flags(TaskOptions)
    for part in (ModelConfig, TrainConfig):
        program.define_flags(part, default_of=" or the preset's")
    flags.DEFINE_alias("job-dir", "job_dir")
    program.run(lambda _: importlib.import_module("trainer.task").main())

import dataclasses
import json
import math
import os
import signal
import sys
from collections.abc import Callable

import keras
import tensorflow as tf
from absl import logging

from export import saved_model
from mrnn_tf import files, schema, versions
from mrnn_tf.data import records
from mrnn_tf.errors import UserError
from mrnn_tf.inference import Inference, attached_encoder
from mrnn_tf.presets import PRESETS
from mrnn_tf.run import Run
from trainer import train

RESTART_ME = os.EX_TEMPFAIL
_LOST_WORKER = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)


def main() -> None:
    """Trains as the flags and the environment say, which is read here and nowhere else."""
    given = program.given_flags(TaskOptions)
    model, training = PRESETS[given.get("preset", TaskOptions.preset)]()
    workers, worker = _workers(json.loads(os.environ.get("TF_CONFIG") or "{}"))
    environment = {
        "checkpoint_dir": os.environ.get("AIP_CHECKPOINT_DIR"),
        "tensorboard_dir": os.environ.get("AIP_TENSORBOARD_LOG_DIR"),
        "model_dir": os.environ.get("AIP_MODEL_DIR"),
    }
    more = {name: value for name, value in environment.items() if value and name not in given}
    trial = os.environ.get("CLOUD_ML_TRIAL_ID")
    if trial and "job_dir" in given:
        # Vertex AI does the same to the directories above.
        more["job_dir"] = tf.io.gfile.join(given["job_dir"], trial)
    options = program.from_flags(
        TaskOptions,
        model=dataclasses.replace(model, **program.given_flags(ModelConfig)),
        train=dataclasses.replace(training, **program.given_flags(TrainConfig)),
        workers=workers,
        worker=worker,
        **more,
    )
    listeners = {"evaluated": reporter(trial)} if trial and options.worker == 0 else {}
    set_up_process(options.train)
    strategy = choose_strategy(workers, options.train.jit_compile)
    program.log_devices(options.require_gpu)
    if strategy.num_replicas_in_sync > 1:
        logging.info("%d replicas in %d workers", strategy.num_replicas_in_sync, workers)

    # After the strategy, which takes the signal for itself when there are several workers.
    stop = []

    def request_stop(*_) -> None:
        if stop:
            raise KeyboardInterrupt  # the second time it ends at once
        stop.append(True)
        logging.info("Saving, then stopping; a second signal ends it at once.")

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, request_stop)

    try:
        with records.naming_corruption(options.data):
            result = train.train(options, strategy, lambda: bool(stop), **listeners)
        if not result.finished:
            sys.exit(RESTART_ME)
        if options.worker == 0:
            best = "nothing evaluated"
            if math.isfinite(result.perplexity):
                best = f"best validation perplexity {result.perplexity:.3f}"
            for name, caption in result.captions:
                print(f"{name}: {caption}")
            print(f"finished at step {result.step}, {best}")
            if options.export:
                print(f"exported {export_best(options, at_root='model_dir' in more)}")
            print(f"next: tensorboard --logdir {options.tensorboard_dir}")
        wait_for_all(strategy)
    except _LOST_WORKER as error:
        if workers == 1:
            raise
        logging.error("Lost another worker (%s): start all again.", error.message.split("\n")[0])
        sys.exit(RESTART_ME)


def set_up_process(config: TrainConfig) -> None:
    """Makes the settings of a run that are those of the whole process."""
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    if config.mixed_precision:
        keras.mixed_precision.set_global_policy("mixed_bfloat16")


def choose_strategy(workers: int, jit_compile: bool) -> tf.distribute.Strategy:
    """All workers of TF_CONFIG, all GPUs of this machine, or the one device."""
    if workers == 1 and len(tf.config.list_physical_devices("GPU")) < 2:
        return tf.distribute.get_strategy()
    if jit_compile:
        raise UserError("`jit_compile` works on one device only.")
    if workers > 1:
        return tf.distribute.MultiWorkerMirroredStrategy()
    return tf.distribute.MirroredStrategy()


def wait_for_all(strategy: tf.distribute.Strategy) -> None:
    """Returns when all workers are here.

    A chief that is lost while it exports needs the others again, so none of them ends before it.
    """
    total = strategy.run(
        lambda: tf.distribute.get_replica_context().all_reduce(
            tf.distribute.ReduceOp.SUM, tf.constant(1.0)
        )
    )
    float(strategy.experimental_local_results(total)[0])


def export_best(options: TaskOptions, at_root: bool = False) -> str:
    """Exports the best weights as a new version, unless they are the newest; tells where.

    `at_root`: a copy lies beside the versions, where Vertex AI's prebuilt containers look for it.
    """
    run = Run.load(options.job_dir, checkpoint_dir=options.checkpoint_dir)
    folder = options.model_dir or tf.io.gfile.join(options.job_dir, schema.MODEL_DIR)
    directory = versions.newest(folder)
    if not directory or not _is_export_of(directory, run):
        weights = None if run.network.encoder else options.encoder_weights
        encoder = attached_encoder(run, None, weights)
        directory = saved_model.version_directory(folder, None)
        saved_model.export_run(run, Inference(run, encoder), directory)
    if at_root and not (versions.is_whole(folder) and _is_export_of(folder, run)):
        if versions.is_whole(folder):  # of other weights; it is not whole while it is replaced
            tf.io.gfile.remove(tf.io.gfile.join(folder, schema.SAVED_MODEL_FILE))
        files.copy(directory, folder, last=schema.SAVED_MODEL_FILE)
    return directory


def _is_export_of(directory: str, run: Run) -> bool:
    return Run.from_saved_model(directory).fingerprint == run.fingerprint


def reporter(trial: str) -> Callable[[int, dict[str, float]], None]:
    """What tells Vertex AI's hyperparameter tuning of every evaluation."""
    try:
        import hypertune
    except ImportError:
        raise UserError(
            f"This is trial {trial} of a tuning job, which cannot be told of its metrics: install "
            "cloudml-hypertune."
        ) from None
    tuner = hypertune.HyperTune()

    def report(step: int, measured: dict[str, float]) -> None:
        for name in measured.keys() & {"perplexity", "cider"}:
            tuner.report_hyperparameter_tuning_metric(
                hyperparameter_metric_tag=name, metric_value=measured[name], global_step=step
            )

    return report


def _workers(tf_config: dict) -> tuple[int, int]:
    """How many workers the cluster of TF_CONFIG has, and which this is; the chief is 0."""
    cluster, task = tf_config.get("cluster", {}), tf_config.get("task", {})
    chiefs = len(cluster.get("chief", []))
    worker = int(task.get("index", 0)) + (chiefs if task.get("type") == "worker" else 0)
    return max(1, chiefs + len(cluster.get("worker", []))), worker

"""Trains a model on records, on one device, several, or several workers (TF_CONFIG).

Example:

    python -m trainer.task --data data/flickr8k --job_dir runs/first --preset paper

Every field of the configuration is a flag and overrides the preset. The same command continues a
stopped run. Exit codes: 0 finished; 75 start it again: SIGTERM came and all is saved, or another
worker was lost; 1 an error that starting again would not mend.
"""

import dataclasses
import json
import os
import signal
import sys

import keras
import tensorflow as tf
from absl import flags, logging

from export import saved_model
from mrnn_tf import program, schema, versions
from mrnn_tf.config import ModelConfig, TrainConfig, field
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOptions(train.TrainOptions):
    """What the program does beside training."""

    preset: str = field("paper", "settings to begin with", choices=tuple(sorted(PRESETS)))
    export: bool = field(False, "export the best weights as a SavedModel at the end")
    model_dir: str | None = field(None, "default: $AIP_MODEL_DIR, or JOB_DIR/model/<step>")
    require_gpu: bool = field(False, "fail where there is no GPU")


def main(_) -> None:
    """Trains as the flags and the environment say, which is read here and nowhere else."""
    given = program.given_flags(TaskOptions)
    model, training = PRESETS[given.get("preset", TaskOptions.preset)]()
    workers, worker = _workers(json.loads(os.environ.get("TF_CONFIG") or "{}"))
    environment = {
        "checkpoint_dir": os.environ.get("AIP_CHECKPOINT_DIR"),
        "tensorboard_dir": os.environ.get("AIP_TENSORBOARD_LOG_DIR"),
        "model_dir": os.environ.get("AIP_MODEL_DIR"),
    }
    options = program.from_flags(
        TaskOptions,
        model=dataclasses.replace(model, **program.given_flags(ModelConfig)),
        train=dataclasses.replace(training, **program.given_flags(TrainConfig)),
        workers=workers,
        worker=worker,
        **{name: value for name, value in environment.items() if name not in given},
    )
    set_up_process(options.train)
    strategy = choose_strategy(workers, options.train.jit_compile)
    program.log_devices(options.require_gpu)
    if strategy.num_replicas_in_sync > 1:
        logging.info("%d replicas in %d workers", strategy.num_replicas_in_sync, workers)

    # After the strategy, which takes the signal for itself when there are several workers.
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))

    try:
        with records.naming_corruption(options.data):
            result = train.train(options, strategy, stop_requested=lambda: bool(stop))
    except _LOST_WORKER as error:
        if workers == 1:
            raise
        logging.error("Lost another worker (%s): start all again.", error.message.split("\n")[0])
        sys.exit(RESTART_ME)
    if not result.finished:
        sys.exit(RESTART_ME)
    if options.worker == 0:
        for name, caption in result.captions:
            print(f"{name}: {caption}")
        print(f"finished at step {result.step}, best validation perplexity {result.perplexity:.3f}")
        if options.export:
            print(f"exported {export_best(options)}")
        print(f"next: tensorboard --logdir {options.tensorboard_dir}")


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


def export_best(options: TaskOptions) -> str:
    """Exports the best weights, unless a run that was started again has done so; tells where."""
    run = Run.load(options.job_dir, checkpoint_dir=options.checkpoint_dir)
    default = tf.io.gfile.join(options.job_dir, schema.MODEL_DIR, str(run.step))
    directory = (options.model_dir or default).rstrip("/")
    if not versions.is_whole(directory):
        weights = None if run.network.encoder else options.encoder_weights
        encoder = attached_encoder(run, None, weights)
        saved_model.export_run(run, Inference(run, encoder), directory)
    return directory


def _workers(tf_config: dict) -> tuple[int, int]:
    """How many workers the cluster of TF_CONFIG has, and which this is; the chief is 0."""
    cluster, task = tf_config.get("cluster", {}), tf_config.get("task", {})
    chiefs = len(cluster.get("chief", []))
    worker = int(task.get("index", 0)) + (chiefs if task.get("type") == "worker" else 0)
    return max(1, chiefs + len(cluster.get("worker", []))), worker


if __name__ == "__main__":
    program.define_flags(TaskOptions)
    for part in (ModelConfig, TrainConfig):
        program.define_flags(part, default_of=" or the preset's")
    flags.DEFINE_alias("job-dir", "job_dir")
    program.run(main)

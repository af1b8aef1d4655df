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
from mrnn_tf.config import ModelConfig, TrainConfig
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

_DATA = flags.DEFINE_string("data", None, "Records made by trainer.prepare.")
_JOB_DIR = flags.DEFINE_string("job_dir", None, "The run directory.")
_PRESET = flags.DEFINE_enum("preset", "paper", sorted(PRESETS), "Settings to begin with.")
_CHECKPOINT_DIR = flags.DEFINE_string(
    "checkpoint_dir", None, "Default: $AIP_CHECKPOINT_DIR, or checkpoints/ in the run directory."
)
_TENSORBOARD_DIR = flags.DEFINE_string(
    "tensorboard_dir", None, "Default: $AIP_TENSORBOARD_LOG_DIR, or logs/ in the run directory."
)
_EXPORT = flags.DEFINE_bool("export", False, "Export the best weights as a SavedModel at the end.")
_MODEL_DIR = flags.DEFINE_string(
    "model_dir", None, "Default: $AIP_MODEL_DIR, or model/<step> in the run directory."
)
_ENCODER_WEIGHTS = flags.DEFINE_string(
    "encoder_weights",
    None,
    "File with the weights that --finetune_encoder begins with, or --export attaches.",
)
_PROFILE_STEP = flags.DEFINE_integer("profile_step", None, "Profile the loop with this step.")
_REQUIRE_GPU = flags.DEFINE_bool("require_gpu", False, "Fail where there is no GPU.")
flags.DEFINE_alias("job-dir", "job_dir")


def define_config_flags() -> None:
    """Makes every field of the configuration a flag; unset ones leave the preset alone."""
    define = {
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        bool: flags.DEFINE_bool,
        str: flags.DEFINE_string,
    }
    for config in (ModelConfig, TrainConfig):
        for each in dataclasses.fields(config):
            help_text = f"{each.metadata['help']}; default {each.default!r} or the preset's"
            if each.metadata["choices"]:
                flags.DEFINE_enum(each.name, None, each.metadata["choices"], help_text)
            else:
                define[each.type](each.name, None, help_text)


def configured(config: ModelConfig | TrainConfig) -> ModelConfig | TrainConfig:
    """A preset's part with the flags that were given."""
    given = {
        each.name: flags.FLAGS[each.name].value
        for each in dataclasses.fields(config)
        if flags.FLAGS[each.name].present
    }
    return dataclasses.replace(config, **given)


def choose_strategy(cluster: dict, jit_compile: bool) -> tf.distribute.Strategy:
    """All workers of TF_CONFIG, all GPUs of this machine, or the one device."""
    several = len(cluster.get("worker", [])) + len(cluster.get("chief", [])) > 1
    if not several and len(tf.config.list_physical_devices("GPU")) < 2:
        return tf.distribute.get_strategy()
    if jit_compile:
        raise UserError("--jit_compile works on one device only.")
    if several:
        return tf.distribute.MultiWorkerMirroredStrategy()
    return tf.distribute.MirroredStrategy()


def export_best(places: train.Places, model_dir: str | None) -> str:
    """Exports the best weights, unless a run that was started again has done so; tells where."""
    run = Run.load(places.job_dir, checkpoint_dir=places.checkpoint_dir)
    default = tf.io.gfile.join(places.job_dir, schema.MODEL_DIR, str(run.step))
    directory = (model_dir or default).rstrip("/")
    if not versions.is_whole(directory):
        encoder = attached_encoder(run, None, _encoder_file(run))
        saved_model.export_run(run, Inference(run, encoder), directory)
    return directory


def _encoder_file(run: Run) -> str | None:
    return None if run.network.encoder else _ENCODER_WEIGHTS.value


def main(_) -> None:
    for flag in (_DATA, _JOB_DIR):
        if flag.value is None:
            raise UserError(f"--{flag.name} is required (--help shows an example).")
    preset_model, preset_train = PRESETS[_PRESET.value]()
    model, config = configured(preset_model), configured(preset_train)

    # The environment is read here and nowhere else.
    tf_config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    cluster, task = tf_config.get("cluster", {}), tf_config.get("task", {})
    chiefs = len(cluster.get("chief", []))
    workers = max(1, chiefs + len(cluster.get("worker", [])))
    worker = int(task.get("index", 0)) + (chiefs if task.get("type") == "worker" else 0)
    job_dir = _JOB_DIR.value
    places = train.Places(
        data=_DATA.value,
        job_dir=job_dir,
        checkpoint_dir=_CHECKPOINT_DIR.value
        or os.environ.get("AIP_CHECKPOINT_DIR")
        or tf.io.gfile.join(job_dir, schema.CHECKPOINT_DIR),
        tensorboard_dir=_TENSORBOARD_DIR.value
        or os.environ.get("AIP_TENSORBOARD_LOG_DIR")
        or tf.io.gfile.join(job_dir, schema.LOG_DIR),
        workers=workers,
        worker=worker,
    )

    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    if config.mixed_precision:
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    strategy = choose_strategy(cluster, config.jit_compile)
    program.log_devices(_REQUIRE_GPU.value)
    if strategy.num_replicas_in_sync > 1:
        logging.info("%d replicas in %d workers", strategy.num_replicas_in_sync, workers)

    # After the strategy, which takes the signal for itself when there are several workers.
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))

    try:
        with records.naming_corruption(places.data):
            result = train.train(
                model,
                config,
                places,
                strategy,
                stop_requested=lambda: bool(stop),
                profile_step=_PROFILE_STEP.value,
                encoder_weights=_ENCODER_WEIGHTS.value,
            )
    except _LOST_WORKER as error:
        if workers == 1:
            raise
        logging.error("Lost another worker (%s): start all again.", error.message.split("\n")[0])
        sys.exit(RESTART_ME)
    if not result.finished:
        sys.exit(RESTART_ME)
    if places.is_chief:
        for name, caption in result.captions:
            print(f"{name}: {caption}")
        print(f"finished at step {result.step}, best validation perplexity {result.perplexity:.3f}")
        if _EXPORT.value:
            model_dir = _MODEL_DIR.value or os.environ.get("AIP_MODEL_DIR")
            print(f"exported {export_best(places, model_dir)}")
        print(f"next: tensorboard --logdir {places.tensorboard_dir}")


define_config_flags()

if __name__ == "__main__":
    program.run(main)

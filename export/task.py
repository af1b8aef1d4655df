"""Exports a run as a SavedModel that TF Serving loads.

Example:

    python -m export.task --job_dir runs/first --output models/mrnn

Writes the next version, models/mrnn/1 at first, with the signatures caption, beam_decode,
next_word, sentence_log_prob and encode_image. A run on precomputed features has no image encoder
and exports without caption and encode_image, unless --encoder names the one that made them. The
version appears whole or not at all, after a fresh process has run it and found what the run says.
"""

import os

import tensorflow as tf
from absl import flags

from export.saved_model import attached_encoder, export, next_version
from export.signatures import Settings
from mrnn_tf import program
from mrnn_tf.errors import UserError
from mrnn_tf.run import Run
from mrnn_tf.vision import encoders

_DEFAULT = Settings()
_JOB_DIR = flags.DEFINE_string("job_dir", None, "The run directory.")
_CHECKPOINT_DIR = flags.DEFINE_string("checkpoint_dir", None, "As given to trainer.task.")
_WHICH = flags.DEFINE_enum("checkpoint", "best", ["best", "latest"], "Which weights.")
_OUTPUT = flags.DEFINE_string("output", None, "Folder of the versions, such as models/mrnn.")
_VERSION = flags.DEFINE_integer("version", None, "Default: one more than the newest there.", 1)
_ENCODER = flags.DEFINE_enum(
    "encoder", None, encoders.NAMES, "Image encoder to attach; by default the run's own."
)
_ENCODER_WEIGHTS = flags.DEFINE_string("encoder_weights", None, "File with its weights.")
_BEAM = flags.DEFINE_integer("beam", _DEFAULT.beam, "Width of the search; N of the signatures.", 1)
_TOP_K = flags.DEFINE_integer("top_k", _DEFAULT.top_k, "Words that next_word returns.", 1)
_MAX_WORDS = flags.DEFINE_integer("max_words", _DEFAULT.max_words, "The longest sentence.", 1)
_LENGTH_POWER = flags.DEFINE_float(
    "length_power", _DEFAULT.length_power, "Sentences are ranked by log P / words^length_power."
)


def main(_: list[str]) -> None:
    for flag in (_JOB_DIR, _OUTPUT):
        if flag.value is None:
            raise UserError(f"--{flag.name} is required (--help shows an example).")
    run = Run.load(_JOB_DIR.value, _WHICH.value, _CHECKPOINT_DIR.value)
    encoder = attached_encoder(run, _ENCODER.value, _ENCODER_WEIGHTS.value)
    settings = Settings(_BEAM.value, _TOP_K.value, _MAX_WORDS.value, _LENGTH_POWER.value)
    version = _VERSION.value or next_version(_OUTPUT.value)
    directory = tf.io.gfile.join(_OUTPUT.value, str(version))
    export(run, encoder, settings, directory)
    print(f"exported {directory}")
    base = os.path.dirname(_OUTPUT.value.rstrip("/")) or "."
    print(f"next: python -m serving.local --model_base_path {base}")


if __name__ == "__main__":
    program.run(main)

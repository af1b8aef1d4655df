"""Exports a run as a SavedModel that TF Serving loads.

Example:

    python -m export.task --job_dir runs/first --output models/mrnn

Writes the next version, models/mrnn/1 at first, with the signatures caption, beam_decode,
next_word, sentence_log_prob, encode_image, caption_examples and model_info. A run on precomputed
features has no image encoder and exports without caption and encode_image, unless --encoder names
the one that made them. The version appears whole or not at all, after a fresh process has run it
and found what the run says.
"""

from export.options import ExportOptions
from mrnn_tf import program

if __name__ == "__main__":  # before all other imports: --help needs no TensorFlow
    program.main("export.task:export", ExportOptions)

import os

from export.saved_model import export_run, version_directory
from mrnn_tf.config import BeamSearch
from mrnn_tf.inference import Inference, attached_encoder
from mrnn_tf.run import Run
from mrnn_tf.verification import verify


def export(options: ExportOptions) -> str:
    """Writes the next version of a model and returns its directory."""
    if options.verify:
        verify(options.job_dir, options.checkpoint_dir)
    run = Run.load(options.job_dir, options.checkpoint, options.checkpoint_dir)
    weights, settings = options.encoder_weights, options.encoder_settings
    encoder = attached_encoder(run, options.encoder, weights, **settings)
    search = BeamSearch(options.beam, options.max_words, options.length_power)
    limits = options.top_k, options.max_pixels, options.max_text_words
    inference = Inference(run, encoder, search, *limits)
    directory = version_directory(options.output, options.version)
    export_run(run, inference, directory)
    print(f"exported {directory}")
    base = os.path.dirname(options.output.rstrip("/")) or "."
    print(f"next: python -m serving.local --model_base_path {base}")
    return directory

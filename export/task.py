"""Exports a run as a SavedModel that TF Serving loads.

Example:

    python -m export.task --job_dir runs/first --output models/mrnn

Writes the next version, models/mrnn/1 at first, with the signatures caption, beam_decode,
next_word, sentence_log_prob, encode_image, caption_examples and model_info. A run on precomputed
features has no image encoder and exports without caption and encode_image, unless --encoder names
the one that made them. The version appears whole or not at all, after a fresh process has run it
and found what the run says.
"""

import dataclasses
import os

from export.saved_model import export_run, version_directory
from mrnn_tf import program, text
from mrnn_tf.config import REQUIRED, BeamSearch, field
from mrnn_tf.inference import TOP_K, Inference, attached_encoder
from mrnn_tf.run import Run
from mrnn_tf.verification import Verification, verify
from mrnn_tf.vision import encoders, images


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions(Verification):
    """What is exported, where it goes, and what is fixed then."""

    job_dir: str = field(REQUIRED, "the run directory")
    checkpoint_dir: str | None = field(None, "as given to trainer.task")
    checkpoint: str = field("best", "which weights", choices=("best", "latest"))
    output: str = field(REQUIRED, "folder of the versions, such as models/mrnn")
    version: int | None = field(None, "default: one more than the newest there", at_least=1)
    encoder: str | None = field(
        None, "image encoder to attach; by default the run's own", choices=encoders.NAMES
    )
    encoder_weights: str | None = field(None, "file with its weights")
    beam: int = field(BeamSearch.beam, "width of the search; N of the signatures", at_least=1)
    top_k: int = field(TOP_K, "words that next_word returns", at_least=1)
    max_words: int = field(BeamSearch.max_words, "the longest sentence", at_least=1)
    length_power: float = field(
        BeamSearch.length_power, "sentences are ranked by log P / words^length_power", at_least=0.0
    )
    max_pixels: int = field(
        images.MAX_PIXELS, "a larger image is not decoded: it has no captions", at_least=1
    )
    max_text_words: int = field(
        text.MAX_WORDS, "a sentence or a prefix of more words has no result", at_least=1
    )


def export(options: ExportOptions) -> str:
    """Writes the next version of a model and returns its directory."""
    if options.verify:
        verify(options.job_dir, options.checkpoint_dir)
    run = Run.load(options.job_dir, options.checkpoint, options.checkpoint_dir)
    encoder = attached_encoder(run, options.encoder, options.encoder_weights)
    search = BeamSearch(options.beam, options.max_words, options.length_power)
    limits = options.top_k, options.max_pixels, options.max_text_words
    inference = Inference(run, encoder, search, *limits)
    directory = version_directory(options.output, options.version)
    export_run(run, inference, directory)
    print(f"exported {directory}")
    base = os.path.dirname(options.output.rstrip("/")) or "."
    print(f"next: python -m serving.local --model_base_path {base}")
    return directory


if __name__ == "__main__":
    program.main(export, ExportOptions)

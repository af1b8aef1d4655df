"""Packages a run as a pretrained model: a folder of at most 10 MB that is loaded by its name.

Example:

    python -m export.pretrained --job_dir runs/lite0 --output mrnn_tf/pretrained/lite0 \\
        --description "EfficientNet-Lite0, Flickr8k" --terms "research" --scores report/scores.json

The weights become 16-bit floats. The encoder's weights are not packaged: they come from its own
Python package and are compared by their digest. A run on precomputed features needs --encoder, the
encoder that made them. `mrnn models` lists the model with the figures of --scores, a file of
trainer.evaluate.
"""

from export.options import PretrainedOptions
from mrnn_tf import program

if __name__ == "__main__":  # before all other imports: --help needs no TensorFlow
    program.main("export.pretrained:package_run", PretrainedOptions)

import os

from mrnn_tf import files
from mrnn_tf.config import BeamSearch
from mrnn_tf.errors import UserError
from mrnn_tf.pretrained import Card, packaging
from mrnn_tf.run import Run

_FIGURES = ("cider", "bleu_4", "perplexity")


def package_run(options: PretrainedOptions) -> str:
    """Writes the folder of a pretrained model and returns it."""
    run = Run.load(options.job_dir, options.checkpoint)
    figures = _figures(options.scores) if options.scores else {}
    card = Card(options.description, options.terms, figures)
    packaging.package(run, options.output, card, options.encoder)
    sizes = [os.path.getsize(os.path.join(options.output, n)) for n in os.listdir(options.output)]
    print(f"packaged {options.output}: {sum(sizes) / 1e6:.1f} MB")
    print(f"next: mrnn caption photo.jpg --model {options.output}")
    return options.output


def _figures(path: str) -> dict[str, float]:
    scores = files.read_json(path, "what `python -m trainer.evaluate` wrote is wanted")
    try:
        figures = scores["captions"][f"beam {BeamSearch.beam}"]
        return {f"{scores['split']} {name}": float(figures[name]) for name in _FIGURES}
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"`scores` {path} has no figures of captions: {error}.") from error

"""mrnn_tf: captions for images, images for sentences, sentences for images.

    import mrnn_tf

    captioner = mrnn_tf.Captioner.load("models/mrnn/1")  # or the name of a pretrained model
    for caption in captioner.caption("photo.jpg"):
        print(caption.text, caption.log_prob)

The names below are loaded when they are first used: TensorFlow is not imported before, and the
package without extras does not have it.
"""

import importlib
from typing import Any

from mrnn_tf import extras

__version__ = "0.1.0"

_HOMES = {
    "Caption": "captioner",
    "Captioner": "captioner",
    "Score": "captioner",
    "Unreadable": "captioner",
    "Word": "captioner",
    "BeamSearch": "config",
    "ModelConfig": "config",
    "TrainConfig": "config",
    "UserError": "errors",
    "MRNN": "model.mrnn",
    "Match": "photo_index",
    "PhotoIndex": "photo_index",
    "RerankedCaption": "photo_index",
    "SentenceMatch": "photo_index",
    "Vocabulary": "text",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mrnn_tf' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"mrnn_tf.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        raise ImportError(extras.sentence(f"mrnn_tf.{name}", error.name, "serve")) from error


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

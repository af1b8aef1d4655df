"""Pretrained models by name: every model is a folder of this package.

A folder holds `config.json`, `vocabulary.txt`, the weights as 16-bit floats and, written last,
`model.json`: what the model is, with the checksums of the other files. `packaging` writes and
loads it. The names and cards can be read without TensorFlow.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path

from mrnn_tf.errors import UserError

DEFAULT = "lite0"  # what is loaded where no model is named
MARKER_FILE = "model.json"
WEIGHTS_FILE = "weights.safetensors"
_HOME = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Card:
    """What a pretrained model says of itself."""

    description: str  # one line: network, encoder, data
    terms: str  # one line: under which terms it may be used
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)  # by measure


def names() -> list[str]:
    """The names of the packaged models, the default first."""
    present = sorted(path.parent.name for path in _HOME.glob(f"*/{MARKER_FILE}"))
    return sorted(present, key=lambda name: name != DEFAULT)


def resolve(model: str | os.PathLike | None = None) -> str:
    """The folder of a packaged model, by default of `DEFAULT`; any other name is a path."""
    if model is None and DEFAULT not in names():
        raise UserError("`model` is required: this release has no pretrained model.")
    name = DEFAULT if model is None else os.fspath(model)
    if name in names():
        return str(_HOME / name)
    if "://" not in name and not os.path.exists(name):
        known = f"a pretrained one: {', '.join(names())}" if names() else "a pretrained one"
        raise UserError(f"There is no model {name}: neither such a folder nor {known}.")
    return name


def label(path: str) -> str:
    """What `resolve` finds a folder by again: the name of a packaged model, or an absolute path."""
    if "://" in path:
        return path
    folder = Path(path).absolute()
    return folder.name if folder.parent == _HOME and folder.name in names() else str(folder)


def card(name: str) -> Card:
    """What a packaged model says of itself."""
    content = json.loads(Path(resolve(name), MARKER_FILE).read_text(encoding="utf-8"))
    return Card(**{field.name: content[field.name] for field in dataclasses.fields(Card)})

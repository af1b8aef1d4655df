"""The tables of the dataset: TOML files beside the code."""

import importlib.resources
import tomllib
from typing import Any


def load(name: str) -> dict[str, Any]:
    folder = importlib.resources.files("mrnn_tf.data.demo")
    return tomllib.loads(folder.joinpath(name).read_text("utf-8"))

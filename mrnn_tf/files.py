"""Files that appear whole or not at all, on any file system that TensorFlow knows."""

import json
import uuid
from typing import Any

import tensorflow as tf


def write_whole(path: str, content: str | bytes) -> None:
    """Writes a small file beside, then renames it."""
    partial = f"{path}.{uuid.uuid4().hex}.partial"
    with tf.io.gfile.GFile(partial, "wb" if isinstance(content, bytes) else "w") as file:
        file.write(content)
    tf.io.gfile.rename(partial, path, overwrite=True)


def write_json(path: str, content: Any) -> None:
    write_whole(path, json.dumps(content, indent=1, allow_nan=False) + "\n")

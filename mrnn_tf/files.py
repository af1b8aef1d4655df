"""Files that appear whole or not at all, on any file system that TensorFlow knows."""

import json
import os
import uuid
from typing import Any

import tensorflow as tf

from mrnn_tf.errors import UserError


def read_json(path: str, wanted: str) -> Any:
    """The content of a JSON file; an error says what is `wanted` there."""
    if not tf.io.gfile.exists(path):
        raise FileNotFoundError(f"There is no file {path}: {wanted}.")
    with tf.io.gfile.GFile(path, "rb") as file:
        content = file.read()
    if not content.strip():
        raise UserError(f"{path} is empty: {wanted}.")
    try:
        return json.loads(content)
    except ValueError as error:
        raise UserError(f"{path} is not whole JSON ({error}): {wanted}.") from error


def write_whole(path: str, content: str | bytes) -> None:
    """Writes a small file beside, then renames it; makes its folder where there is none."""
    tf.io.gfile.makedirs(os.path.dirname(path) or ".")
    partial = f"{path}.{uuid.uuid4().hex}.partial"
    with tf.io.gfile.GFile(partial, "wb" if isinstance(content, bytes) else "w") as file:
        file.write(content)
    tf.io.gfile.rename(partial, path, overwrite=True)


def write_json(path: str, content: Any) -> None:
    write_whole(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def publish(source: str, target: str, last: str) -> None:
    """Makes a finished local directory appear at its place, whole.

    It is copied beside the target and renamed. A store without directories cannot rename one: there
    the file named `last`, without which the directory counts for nothing, is copied last.
    """
    if "://" in target:
        copy(source, target, last)
        return
    beside = f"{target}.partial"
    if tf.io.gfile.exists(beside):
        tf.io.gfile.rmtree(beside)
    copy(source, beside, last)
    os.rename(beside, target)  # an empty directory there gives way, a full one does not


def copy(source: str, target: str, last: str) -> None:
    """Copies the files of a directory into another one, the file named `last` at the end."""
    names = [
        os.path.relpath(os.path.join(folder, name), source)
        for folder, _, members in tf.io.gfile.walk(source)
        for name in members
    ]
    for name in sorted(names, key=lambda name: (name == last, name)):
        path = tf.io.gfile.join(target, name)
        tf.io.gfile.makedirs(os.path.dirname(path))
        tf.io.gfile.copy(tf.io.gfile.join(source, name), path, overwrite=True)

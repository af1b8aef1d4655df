"""The versions of a model or an index: a folder of numbered directories, each a SavedModel."""

import re

import tensorflow as tf

from mrnn_tf import schema

NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


def is_whole(directory: str) -> bool:
    """Whether a directory holds a whole SavedModel."""
    return tf.io.gfile.exists(tf.io.gfile.join(directory, schema.SAVED_MODEL_FILE))


def numbers(folder: str) -> list[int]:
    """The numbers of the directories in a folder, whole or not, in order."""
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    return sorted(int(name.rstrip("/")) for name in names if NUMBER.fullmatch(name.rstrip("/")))


def newest(path: str) -> str | None:
    """The newest version in a folder, or the SavedModel that `path` itself is; `None` without one.

    The folder may hold a copy of a version beside them, as Vertex AI wants it.
    """
    directories = [tf.io.gfile.join(path, str(number)) for number in reversed(numbers(path))]
    return next(filter(is_whole, [*directories, path]), None)

"""The versions of a model or an index: a folder of numbered directories, each a SavedModel."""

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from mrnn_tf import checksums, files, schema

NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
_MADE_BY = "made_by"
# What may be large is checked where it is read: by TensorFlow, and by `retrieval.index`.
_CHECKED_BY_READERS = ("variables/", "assets.extra/index/")


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


def seal(directory: str, program: str) -> None:
    """Writes the checksums of all files of a version, and the program that makes it again."""
    path, names = tf.io.gfile.join(directory, schema.CHECKSUMS_FILE), files.list_files(directory)
    checksums.write(path, {_MADE_BY: program}, directory, names)


def check(directory: str, everything: bool = False) -> None:
    """Refuses a damaged version; one of an earlier release has no checksums and passes.

    Looks at the sizes of all files, and at the content of those that no reader checks.
    """
    path = tf.io.gfile.join(directory, schema.CHECKSUMS_FILE)
    if not tf.io.gfile.exists(path):
        return
    remedy = "export the version again"
    content, sums = checksums.read(path, "checksums are wanted", directory, remedy)
    sums = dataclasses.replace(sums, remedy=f"{remedy} with `{content[_MADE_BY]}`")
    sums.check_sizes()
    is_checked = lambda name: everything or not name.startswith(_CHECKED_BY_READERS)  # noqa: E731
    sums.check(*filter(is_checked, sums.recorded))


def load(directory: str) -> Any:
    """Loads the SavedModel of a version, and refuses a damaged one."""
    with _undamaged(directory):
        return tf.saved_model.load(directory)


def load_session(
    directory: str, config: tf.compat.v1.ConfigProto
) -> tuple[tf.compat.v1.Session, tf.compat.v1.MetaGraphDef]:
    """As `load`, into a session of its own, which frees all memory when it is deleted."""
    with _undamaged(directory), tf.Graph().as_default() as graph:
        session = tf.compat.v1.Session(graph=graph, config=config)
        return session, tf.compat.v1.saved_model.load(session, ["serve"], directory)


@contextlib.contextmanager
def _undamaged(directory: str) -> Iterator[None]:
    check(directory)
    variables = tf.io.gfile.join(directory, "variables", "variables")
    with checksums.naming_damage(variables, "export the version again"):
        yield

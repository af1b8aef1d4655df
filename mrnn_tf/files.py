"""Files that appear whole or not at all, on any file system that TensorFlow knows."""

import contextlib
import errno
import fcntl
import glob
import io
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from mrnn_tf import arrays
from mrnn_tf.errors import UserError

_LOCKED_BY_THEN = 60.0  # seconds after which a directory has been locked by whoever made it


def read_json(path: str, wanted: str) -> Any:
    """The content of a JSON file; an error says what is `wanted` there."""
    if not tf.io.gfile.exists(path):
        raise FileNotFoundError(f"There is no file {path}: {wanted}.")
    with tf.io.gfile.GFile(path, "rb") as file:
        content = file.read()
    if not content.strip():
        raise UserError(f"{path} is empty: {wanted}.")
    try:
        parsed = json.loads(content)
        if any(sign in content for sign in (b"\\u", b"\xed", b"\0")):
            # Half of a surrogate pair, escaped, as bytes or in UTF-16, can be read but not written.
            json.dumps(parsed, ensure_ascii=False).encode()
        return parsed
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not whole JSON ({error}): {wanted}.") from error


def read_weights(path: str) -> bytes:
    """The content of a file of weights."""
    if not tf.io.gfile.exists(path):
        raise FileNotFoundError(f"The weights file {path} does not exist.")
    with tf.io.gfile.GFile(path, "rb") as file:
        return file.read()


def read_text(path: str) -> str:
    """The content of a text file in UTF-8."""
    with tf.io.gfile.GFile(path, "rb") as file:
        content = file.read()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a text in UTF-8: {error}.") from error


def write_whole(path: str, content: str | bytes) -> None:
    """Writes a small file beside, then renames it; makes its folder where there is none."""
    tf.io.gfile.makedirs(os.path.dirname(path) or ".")
    partial = f"{path}.{uuid.uuid4().hex}.partial"
    with removed_on_failure(partial):
        with tf.io.gfile.GFile(partial, "wb" if isinstance(content, bytes) else "w") as file:
            file.write(content)
        tf.io.gfile.rename(partial, path, overwrite=True)


@contextlib.contextmanager
def removed_on_failure(partial: str) -> Iterator[None]:
    """Removes a file that is not whole, so that it does not fill a disk that is full already."""
    try:
        yield
    except BaseException:
        if tf.io.gfile.exists(partial):
            tf.io.gfile.remove(partial)
        raise


def write_json(path: str, content: Any) -> None:
    write_whole(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def write_arrays(path: str, **named: np.ndarray) -> None:
    """Writes an `.npz` archive, which has a checksum of every array."""
    content = io.BytesIO()
    np.savez(content, **named)
    write_whole(path, content.getvalue())


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """The arrays of an archive that a stopped command left; refuses a damaged one."""
    with tf.io.gfile.GFile(path, "rb") as file:
        content = file.read()
    try:
        return arrays.read_archive(io.BytesIO(content), "it")
    except UserError as error:
        raise UserError(
            f"{path} is damaged ({error}): delete it and run the same command again."
        ) from error


def publish(source: str, target: str, last: str) -> None:
    """Makes a finished local directory appear at its place, whole, or raises `UserError`.

    It is copied beside the target, under a name of its own, and renamed: of several processes that
    publish to one target only one can. A store without directories cannot rename one: there the
    file named `last`, without which the directory counts for nothing, is copied last.
    """
    if "://" in target:
        return copy(source, target, last)
    _remove_abandoned(f"{glob.escape(target)}.*partial")
    partial = f"{target}.{uuid.uuid4().hex}.partial"
    os.makedirs(partial)
    with locked(partial):
        try:
            copy(source, partial, last)
            os.rename(partial, target)  # an empty directory there gives way, a full one does not
        except BaseException as error:
            shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise UserError(
                    f"{target} was published by another process meanwhile: run the command again "
                    "for a version of its own."
                ) from None
            raise


def copy(source: str, target: str, last: str) -> None:
    """Copies the files of a directory into another one, the file named `last` at the end."""
    for name in sorted(list_files(source), key=lambda name: (name == last, name)):
        path = tf.io.gfile.join(target, name)
        tf.io.gfile.makedirs(os.path.dirname(path))
        tf.io.gfile.copy(tf.io.gfile.join(source, name), path, overwrite=True)


def list_files(directory: str) -> list[str]:
    """The paths of all files in a directory and below, relative to it."""
    return [
        os.path.relpath(os.path.join(folder, name), directory)
        for folder, _, names in tf.io.gfile.walk(directory)
        for name in names
    ]


@contextlib.contextmanager
def alone_in(directory: str) -> Iterator[None]:
    """Makes a directory and works in it alone; raises `UserError` where another process does.

    A store without directories has no locks: there two processes are not told from each other.
    """
    tf.io.gfile.makedirs(directory)
    with contextlib.ExitStack() as stack:
        if "://" not in directory:
            try:
                stack.enter_context(locked(directory))
            except BlockingIOError:
                raise UserError(
                    f"Another process is writing to {directory}: wait for its end, or name "
                    "another folder."
                ) from None
        yield


@contextlib.contextmanager
def locked(directory: str, wait: bool = False) -> Iterator[None]:
    """Holds a lock that the system releases when the process ends, however it ends.

    Where another process holds it, this raises `OSError`, or waits.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


def _remove_abandoned(pattern: str) -> None:
    """Removes what killed processes left: directories that nobody has locked for a while."""
    for directory in glob.glob(pattern):
        with contextlib.suppress(OSError):  # it is locked, or gone
            if time.time() - os.stat(directory).st_mtime > _LOCKED_BY_THEN:
                with locked(directory):
                    shutil.rmtree(directory)

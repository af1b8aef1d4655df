"""Captions of many photographs, as rows of a file: JSON lines or Parquet.

    {"path": "beach.jpg", "captions": ["a dog runs", ...], "log_probs": [-7.1, ...], "error": null}

Of a photograph that cannot be read the lists are empty, and `error` says why.
"""

import io
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from mrnn_tf import files, photos
from mrnn_tf.captioner import AT_ONCE, Caption, Captioner, Unreadable
from mrnn_tf.errors import UserError

FORMATS = ("jsonl", "parquet")

Row = dict[str, Any]


def caption_files(
    captioner: Captioner, paths: Sequence[str], n: int | None = None, prefix: str = ""
) -> Iterator[tuple[str, list[Caption] | Unreadable]]:
    """The captions of photographs, each with its path, in their order.

    A path may be of any file system that TensorFlow knows.
    """
    for first in range(0, len(paths), AT_ONCE):
        batch = paths[first : first + AT_ONCE]
        contents = [_content(path) for path in batch]
        readable = [content for content in contents if not isinstance(content, Unreadable)]
        results = iter(captioner.caption(readable, prefix, n))
        for path, content in zip(batch, contents, strict=True):
            result = content if isinstance(content, Unreadable) else next(results)
            if isinstance(result, Unreadable) and isinstance(content, bytes):  # has no name
                result = Unreadable(result.reason.replace("the image", path, 1))
            yield path, result


def row(path: str, result: list[Caption] | Unreadable) -> Row:
    """What a file says of a photograph."""
    captions = result or []
    return {
        "path": path,
        "captions": [caption.text for caption in captions],
        "log_probs": [caption.log_prob for caption in captions],
        "error": result.reason if isinstance(result, Unreadable) else None,
    }


def format_of(path: str) -> str:
    """The format that the name of a file ends with."""
    ending = os.path.splitext(path)[1].removeprefix(".")
    if ending not in FORMATS:
        raise UserError(f"`output` {path} must end with .{' or .'.join(FORMATS)}.")
    return ending


def write(path: str, rows: Sequence[Row]) -> None:
    """Writes rows as a whole file, in the format of its name."""
    if format_of(path) == "jsonl":
        lines = (json.dumps(each, ensure_ascii=False) + "\n" for each in rows)
        return files.write_whole(path, "".join(lines).encode(errors="backslashreplace"))
    pyarrow, parquet = _pyarrow()
    texts, floats = pyarrow.list_(pyarrow.string()), pyarrow.list_(pyarrow.float32())
    fields = {"path": pyarrow.string(), "captions": texts, "log_probs": floats}
    schema = pyarrow.schema({**fields, "error": pyarrow.string()})
    content = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema), content)
    return files.write_whole(path, content.getvalue())


def count_rows(path: str) -> int:
    """How many rows a file holds."""
    with tf.io.gfile.GFile(path, "rb") as file:
        content = file.read()
    if format_of(path) == "jsonl":
        return content.count(b"\n")
    return _pyarrow()[1].read_metadata(io.BytesIO(content)).num_rows


def list_images(path: str) -> list[str]:
    """The images that a path names: those in a folder and below, or the file itself."""
    if not tf.io.gfile.isdir(path):
        return [path]
    paths = [
        tf.io.gfile.join(folder, name)
        for folder, _, names in tf.io.gfile.walk(path)
        for name in names
        if name.lower().endswith(photos.SUFFIXES) and not name.startswith(".")
    ]
    if not paths:
        raise UserError(f"{path} holds no photographs.")
    return sorted(paths)


def _content(path: str) -> str | bytes | Unreadable:
    if "://" not in path:
        return path
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return file.read()
    except tf.errors.OpError as error:
        return Unreadable(f"{path}: {error.message}")


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise UserError('A .parquet file needs pyarrow: pip install "mrnn_tf[beam]"') from None
    return pyarrow, parquet

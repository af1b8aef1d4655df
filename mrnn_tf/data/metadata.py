"""Metadata of images: JSON lines with facts that a search may filter by."""

import json
import math
import re
from typing import Any

import tensorflow as tf

from mrnn_tf.errors import UserError

# What a line of a dataset in jsonl has besides.
_NOT_METADATA = {"id", "image", "captions", "split"}
_RESERVED = {"projection"}
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def read(path: str) -> dict[str, dict[str, Any]]:
    """The metadata of images by their ids.

    A line is `{"id": "a.jpg", "album": "2024", "year": 2024}`. The id is that of the records; as in
    a dataset in jsonl it may be under `image`, and `captions` and `split` are no metadata, so that
    the file of such a dataset can be its metadata too. A value is a string, a number, true, false,
    or a list of these; null is as good as none.
    """
    with tf.io.gfile.GFile(path, "rb") as file:
        lines = file.read().splitlines()
    metadata = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            image_id, facts = _parse(line)
        except UserError as error:
            raise UserError(f"`metadata` {path}:{number}: {error}") from None
        if image_id in metadata:
            raise UserError(f"`metadata` {path}:{number}: {image_id!r} is there twice.")
        metadata[image_id] = facts
    return metadata


def _parse(line: bytes) -> tuple[str, dict[str, Any]]:
    try:
        record = json.loads(line)
        json.dumps(record, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise UserError(f"the line is not JSON in UTF-8 ({error}).") from None
    if not isinstance(record, dict):
        raise UserError("a line must be a JSON object.")
    image_id = record.get("id", record.get("image"))
    if type(image_id) not in (str, int) or image_id == "":
        raise UserError("`id` must be the id of an image, a string or an integer.")
    facts = {
        name: value
        for name, value in record.items()
        if name not in _NOT_METADATA and value is not None
    }
    for name, value in facts.items():
        if not _NAME.fullmatch(name) or name in _RESERVED:
            raise UserError(f"{name!r} cannot be the name of metadata: filters could not use it.")
        values = value if isinstance(value, list) else [value]
        if not all(_is_plain(each) for each in values):
            raise UserError(
                f"{name!r} must be a string, a finite number, true, false, or a list of these."
            )
    return str(image_id), facts


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))

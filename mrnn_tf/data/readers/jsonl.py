"""Plain jsonl: one JSON object a line, for every dataset without a reader of its own."""

import collections
import dataclasses
import difflib
import json
import os
import zlib
from collections.abc import Iterator

import tensorflow as tf
from absl import logging

from mrnn_tf import schema
from mrnn_tf.data.listing import CaptionedImage, Problems
from mrnn_tf.errors import UserError

FILE = "captions.jsonl"
_KEYS = {"image", "captions", "split", "id"}


def read(source: str, problems: Problems) -> list[CaptionedImage]:
    """The images of a `.jsonl` file, or of `captions.jsonl` in the folder `source`.

    A line is `{"image": "a.jpg", "captions": ["a dog runs"], "split": "train", "id": "a"}`. The
    image is relative to the file's folder. Only `image` is required: without `id` the image names
    itself; without `split` an image with captions is for training and one without for testing.
    Where no line has a `split`, a tenth of the captioned images is for validation and a tenth for
    testing, by the hash of their ids. Other keys are ignored, unless they resemble a missing one.
    """
    path = os.path.join(source, FILE) if tf.io.gfile.isdir(source) else source
    if not tf.io.gfile.exists(path):
        raise FileNotFoundError(f"The source {source!r} has no file {FILE}.")
    with tf.io.gfile.GFile(path, "rb") as file:
        lines = file.read().splitlines()
    images, has_splits = [], False
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            # Half of a surrogate pair is valid JSON, but no text that can be written again.
            json.dumps(record, ensure_ascii=False).encode()
            images.append(_image(record, os.path.dirname(path)))
            has_splits |= record.get("split") is not None
            for misspelt, meant in _misspelt(record):
                problems.add(f"key `{misspelt}`, where `{meant}` may be meant", f"{path}:{number}")
        except UserError as error:
            problems.add(str(error), f"{path}:{number}")
        except UnicodeError:
            problems.add("line that is not Unicode", f"{path}:{number}")
        except (ValueError, RecursionError):  # a number may have too many digits
            problems.add("line that is not JSON", f"{path}:{number}")
    return images if has_splits else _split_by_hash(images)


def _split_by_hash(images: list[CaptionedImage]) -> list[CaptionedImage]:
    """Eight tenths of the captioned images for training, a tenth each for the other splits."""
    tenths = (schema.VAL, schema.TEST, *[schema.TRAIN] * 8)
    images = [
        dataclasses.replace(image, split=tenths[zlib.crc32(image.image_id.encode()) % 10])
        if image.captions
        else image
        for image in images
    ]
    if any(image.captions for image in images):
        counts = collections.Counter(image.split for image in images)
        made = ", ".join(f"{split} {counts[split]}" for split in schema.SPLITS)
        logging.info("No line names a split; by the hash of their ids images are: %s.", made)
    return images


def _misspelt(record: dict) -> Iterator[tuple[str, str]]:
    """Keys that are not read, and the missing ones that they resemble."""
    for key in sorted(record.keys() - _KEYS):
        for meant in difflib.get_close_matches(key.lower(), sorted(_KEYS - record.keys()), 1, 0.75):
            yield key, meant


def _image(record: object, folder: str) -> CaptionedImage:
    if not isinstance(record, dict):
        raise UserError("line that is not a JSON object")
    fields = {name: value for name, value in record.items() if value is not None}
    name = fields.get("image")
    if not isinstance(name, str) or not name:
        raise UserError("`image` is not a file name")
    captions = fields.get("captions", [])
    if not isinstance(captions, list) or not all(isinstance(text, str) for text in captions):
        raise UserError("`captions` is not a list of strings")
    split = fields.get("split", schema.TRAIN if captions else schema.TEST)
    if split not in schema.SPLITS:
        raise UserError(f"`split` is not one of {', '.join(schema.SPLITS)}")
    image_id = fields.get("id", name)
    if type(image_id) not in (str, int):
        raise UserError("`id` is neither a string nor an integer")
    return CaptionedImage(str(image_id), split, tuple(captions), os.path.join(folder, name))

"""Plain jsonl: one JSON object a line, for every dataset without a reader of its own."""

import json
import os

import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.data.listing import CaptionedImage, Problems
from mrnn_tf.errors import UserError

FILE = "captions.jsonl"


def read(source: str, problems: Problems) -> list[CaptionedImage]:
    """The images of a `.jsonl` file, or of `captions.jsonl` in the folder `source`.

    A line is `{"image": "a.jpg", "captions": ["a dog runs"], "split": "train", "id": "a"}`. The
    image is relative to the file's folder. Only `image` is required: without `split` an image
    with captions is for training and one without for testing; without `id` the image names itself.
    """
    path = os.path.join(source, FILE) if tf.io.gfile.isdir(source) else source
    if not tf.io.gfile.exists(path):
        raise FileNotFoundError(f"The source {source!r} has no file {FILE}.")
    with tf.io.gfile.GFile(path, "rb") as file:
        lines = file.read().splitlines()
    images = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            # Half of a surrogate pair is valid JSON, but no text that can be written again.
            json.dumps(record, ensure_ascii=False).encode()
            images.append(_image(record, os.path.dirname(path)))
        except json.JSONDecodeError:
            problems.add("line that is not JSON", f"{path}:{number}")
        except UnicodeError:
            problems.add("line that is not Unicode", f"{path}:{number}")
        except UserError as error:
            problems.add(str(error), f"{path}:{number}")
    return images


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

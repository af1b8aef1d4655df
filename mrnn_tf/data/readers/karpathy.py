"""Karpathy's `dataset_*.json`: Flickr8k, Flickr30k and COCO with his splits in one file."""

import fnmatch
import functools
import os

import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.data.listing import CaptionedImage, Problems
from mrnn_tf.data.readers import flickr
from mrnn_tf.data.readers.coco import load_json
from mrnn_tf.errors import UserError

# "restval" is the part of COCO's val that is neither "val" nor "test": it counts as training.
_SPLITS = {split: split for split in schema.SPLITS} | {"restval": schema.TRAIN}
_IMAGE_FOLDERS = ("images", *flickr.FLICKR8K.image_folders, *flickr.FLICKR30K.image_folders, "")


def read(source: str, problems: Problems) -> list[CaptionedImage]:
    """The images of the json file `source`, or of the only one in the folder `source`.

    The images lie beside the file, in `images/` or in their dataset's own folder (COCO's `val2014`
    and `train2014` are named in the file). Images of "restval" count as training images.
    """
    path = _json_file(source)
    image_folder = functools.cache(functools.partial(_image_folder, os.path.dirname(path)))
    images = []
    for index, entry in enumerate(load_json(path)["images"]):
        match entry:
            case {"filename": str(name), "split": str(split), "sentences": [*sentences]} if all(
                map(_has_text, sentences)
            ) and isinstance(entry.get("filepath", ""), str):
                captions = tuple(sentence["raw"] for sentence in sentences)
            case _:
                problems.add("malformed entry", f"{path}: images[{index}]")
                continue
        if split not in _SPLITS:
            problems.add("image in no split", name)
            continue
        if not captions:
            problems.add("listed image without captions", name)
        image_path = os.path.join(image_folder(entry.get("filepath", "")), name)
        images.append(CaptionedImage(name, _SPLITS[split], captions, image_path))
    return images


def _json_file(source: str) -> str:
    if not tf.io.gfile.isdir(source):
        return source
    names = sorted(fnmatch.filter(tf.io.gfile.listdir(source), "dataset*.json"))
    if not names:
        raise FileNotFoundError(
            f"The source {source!r} has no json file of Karpathy's: dataset_flickr8k.json, "
            "dataset_flickr30k.json or dataset_coco.json is wanted."
        )
    if len(names) > 1:
        names = ", ".join(names)
        raise UserError(f"The source {source!r} has several datasets, {names}: give the one file.")
    return os.path.join(source, names[0])


def _has_text(sentence: object) -> bool:
    return isinstance(sentence, dict) and isinstance(sentence.get("raw"), str)


def _image_folder(root: str, filepath: str) -> str:
    folders = [os.path.join(root, folder, filepath) for folder in _IMAGE_FOLDERS]
    return next(filter(tf.io.gfile.isdir, folders), folders[-1])

"""Readers of captioned datasets: from the files as published to one in-memory form."""

import dataclasses
import os
from collections.abc import Callable

import tensorflow as tf

from mrnn_tf.data.listing import CaptionedImage, Problems
from mrnn_tf.data.readers import coco, flickr, iaprtc12, jsonl, karpathy
from mrnn_tf.errors import UserError

# Each is called with the source, the problems found so far and a seed.
READERS: dict[str, Callable[[str, Problems, int], list[CaptionedImage]]] = {
    "flickr8k": lambda source, problems, seed: flickr.read(source, problems, flickr.FLICKR8K),
    "flickr30k": lambda source, problems, seed: flickr.read(source, problems, flickr.FLICKR30K),
    "coco": coco.read,
    "karpathy": lambda source, problems, seed: karpathy.read(source, problems),
    "iaprtc12": lambda source, problems, seed: iaprtc12.read(source, problems),
    "demo": lambda source, problems, seed: jsonl.read(source, problems),
    "jsonl": lambda source, problems, seed: jsonl.read(source, problems),
}


def read_dataset(name: str, source: str, problems: Problems, seed: int = 0) -> list[CaptionedImage]:
    """The images of the dataset `name` in `source`, every id once, without empty captions.

    Image files need not exist. What is wrong with the dataset is added to `problems`; `seed`
    serves the readers that draw a split at random. Several datasets are joined, as `flickr8k,jsonl`
    in `photos/flickr8k,photos/coco`: then the ids begin with the names of the folders.
    """
    names, sources = name.split(","), source.split(",")
    if len(names) == 1:
        return _read(name, source, problems, seed)
    folders = [os.path.basename(folder.rstrip("/")) for folder in sources]
    if len(sources) != len(names) or len({*folders}) != len(folders):
        raise UserError(
            f"The datasets {name} need {len(names)} sources with different names, separated by "
            f"commas; received {source!r}."
        )
    return [
        dataclasses.replace(image, image_id=f"{folder}/{image.image_id}")
        for folder, *one in zip(folders, names, sources, strict=True)
        for image in _read(*one, problems, seed)
    ]


def _read(name: str, source: str, problems: Problems, seed: int) -> list[CaptionedImage]:
    if name not in READERS:
        raise UserError(f"The dataset must be one of {', '.join(READERS)}, received {name!r}.")
    if not tf.io.gfile.exists(source):
        raise FileNotFoundError(f"The source {source!r} of the dataset {name!r} does not exist.")
    images: dict[str, CaptionedImage] = {}
    for image in READERS[name](source, problems, seed):
        if image.image_id in images:
            problems.add("duplicate image id", image.image_id)
            continue
        captions = [caption.strip() for caption in image.captions]
        for _ in range(captions.count("")):
            problems.add("empty caption", image.image_id)
        images[image.image_id] = dataclasses.replace(image, captions=tuple(filter(None, captions)))
    if not images:
        reason = "; ".join(problems.sentences()) or "its lists are empty"
        raise UserError(f"The source {source!r} of the dataset {name!r} has no image ({reason}).")
    return list(images.values())

"""MS COCO: `captions_*.json` with the paper's cut of val, or `image_info_*.json` alone."""

import collections
import os
import random
import re
from collections.abc import Iterable
from typing import NamedTuple

import tensorflow as tf

from mrnn_tf import files, schema
from mrnn_tf.data.listing import CaptionedImage, Problems
from mrnn_tf.errors import UserError

_FILE_NAME = re.compile(r"(?:captions_(train|val)|image_info_([a-z-]+))(\d{4})\.json")
_VAL_IMAGES_USED = 5000


def read(source: str, problems: Problems, seed: int = 0) -> list[CaptionedImage]:
    """The images of the annotation files in `source`, `source/annotations`, or of one such file.

    The images of `captions_train<year>.json` are for training. Those of `captions_val<year>.json`
    are cut as in the paper: 4,000 at random for validation, 1,000 for testing, the rest unused;
    of fewer than 5,000 a fifth is for testing. The cut depends on the seed and the set of ids only.

    The images of `image_info_<part><year>.json` have no captions and are for testing. Beside
    captions files the list would mix with the test cut, so it is skipped and noted as a problem.
    """
    annotations = _annotation_files(source)
    chosen = [file for file in annotations if file.captions_part] or annotations
    # Each year cuts the same images anew: train2017 holds images of val2014.
    if len({file.year if file.captions_part else file.path for file in chosen}) > 1:
        names = ", ".join(os.path.basename(file.path) for file in chosen)
        raise UserError(
            f"The source {source!r} must have the captions of one year or one image list, received "
            f"{names}: move the others away, or give one file as the source."
        )
    for file in annotations:
        if file not in chosen:
            problems.add("image list skipped beside captions", file.path)
    return [image for file in chosen for image in _images(file, problems, seed)]


def cut_validation(image_ids: Iterable[str], seed: int) -> dict[str, str]:
    """The split of the validation images that are used: four for "val" to one for "test"."""
    # Keys from `random()`, whose sequence Python keeps over versions, unlike that of `shuffle`.
    generator = random.Random(seed)
    used = sorted(sorted(image_ids), key=lambda _: generator.random())[:_VAL_IMAGES_USED]
    num_test = len(used) // 5
    return dict.fromkeys(used[num_test:], schema.VAL) | dict.fromkeys(used[:num_test], schema.TEST)


def load_json(path: str) -> dict:
    """The object in a JSON file, which must have a list `images`."""
    content = files.read_json(path, "an object with a list `images` is wanted")
    match content:
        case {"images": list(), "annotations": list()}:
            return content
        case {"images": list()} if "annotations" not in content:
            return content
    raise UserError(
        f"The file {path!r} must hold a JSON object with a list `images`; where it has "
        "`annotations`, they are a list too."
    )


class _AnnotationFile(NamedTuple):
    path: str
    captions_part: str | None  # "train" or "val", None for a list of images without captions
    year: str
    image_folder: str


def _annotation_files(source: str) -> list[_AnnotationFile]:
    if tf.io.gfile.isdir(source):
        root = source
        folders = filter(tf.io.gfile.isdir, (source, os.path.join(source, "annotations")))
        paths = [os.path.join(f, name) for f in folders for name in tf.io.gfile.listdir(f)]
    else:
        folder = os.path.dirname(source)
        root = os.path.dirname(folder) if os.path.basename(folder) == "annotations" else folder
        paths = [source]
    annotations = []
    for path in sorted(paths):
        if match := _FILE_NAME.fullmatch(os.path.basename(path)):
            captions_part, list_part, year = match.groups()
            # The images of image_info_test-dev2015.json lie in test2015.
            name = (captions_part or list_part).removesuffix("-dev") + year
            folders = [os.path.join(root, "images", name), os.path.join(root, name)]
            folder = next(filter(tf.io.gfile.isdir, folders), folders[-1])
            annotations.append(_AnnotationFile(path, captions_part, year, folder))
    if not annotations:
        raise FileNotFoundError(
            f"The source {source!r} neither is nor has an annotation file: captions_train<year>."
            "json, captions_val<year>.json or image_info_<part><year>.json is wanted."
        )
    return annotations


def _images(file: _AnnotationFile, problems: Problems, seed: int) -> list[CaptionedImage]:
    content = load_json(file.path)
    paths = []
    for index, image in enumerate(content["images"]):
        match image:
            case {"id": int(image_id), "file_name": str(name)}:
                paths.append((str(image_id), os.path.join(file.image_folder, name)))
            case _:
                problems.add("malformed entry", f"{file.path}: images[{index}]")
    if not file.captions_part:
        return [CaptionedImage(image_id, schema.TEST, (), path) for image_id, path in paths]
    image_ids = {image_id for image_id, _ in paths}
    captions = collections.defaultdict(list)
    for index, annotation in enumerate(content.get("annotations", ())):
        match annotation:
            case {"image_id": int(image_id), "caption": str(caption)}:
                captions[str(image_id)].append(caption)
            case _:
                problems.add("malformed entry", f"{file.path}: annotations[{index}]")
    for image_id in sorted(captions.keys() - image_ids):
        problems.add("captions of an unknown image", f"{file.path}: image {image_id}")
    is_train = file.captions_part == "train"
    splits = dict.fromkeys(image_ids, schema.TRAIN) if is_train else cut_validation(image_ids, seed)
    for image_id in sorted(splits.keys() - captions.keys()):
        problems.add("listed image without captions", image_id)
    return [
        CaptionedImage(image_id, splits[image_id], tuple(captions[image_id]), path)
        for image_id, path in paths
        if image_id in splits
    ]

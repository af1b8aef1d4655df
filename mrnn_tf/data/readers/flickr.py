"""Flickr8k and Flickr30k: a token file, a list of names for each split, a folder of images."""

import collections
import dataclasses
import os
import re
from collections.abc import Iterator

import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.data.listing import CaptionedImage, Problems

_TOKEN_LINE = re.compile(r"(?P<name>[^\t]+)#\d+\t(?P<caption>.*)")


@dataclasses.dataclass(frozen=True)
class Layout:
    """The names of a dataset's files; of several for one file the first that exists counts."""

    token_files: tuple[str, ...]
    split_lists: dict[str, tuple[str, ...]]
    image_folders: tuple[str, ...]
    karpathy_file: str
    text_folders: tuple[str, ...] = ("",)


FLICKR8K = Layout(
    token_files=("Flickr8k.token.txt", "captions.token.txt"),
    split_lists={
        schema.TRAIN: ("Flickr_8k.trainImages.txt", "train.txt"),
        schema.VAL: ("Flickr_8k.devImages.txt", "val.txt"),
        schema.TEST: ("Flickr_8k.testImages.txt", "test.txt"),
    },
    image_folders=("Flicker8k_Dataset", "Flickr8k_Dataset", "images"),
    karpathy_file="dataset_flickr8k.json",
    text_folders=("", "Flickr8k_text"),
)
FLICKR30K = Layout(
    token_files=("results_20130124.token", "captions.token.txt"),
    split_lists={split: (f"{split}.txt",) for split in schema.SPLITS},
    image_folders=("flickr30k-images", "flickr30k_images", "images"),
    karpathy_file="dataset_flickr30k.json",
)


def read(source: str, problems: Problems, layout: Layout) -> list[CaptionedImage]:
    """The images of the split lists in their order; names in a list may lack `.jpg`.

    Flickr30k is published without lists: those of Karpathy's split circulate as `train.txt`,
    `val.txt` and `test.txt`. A line that is not UTF-8 is a problem, read as Windows-1252.
    """
    token_file = _first_file(source, layout, layout.token_files)
    if token_file is None:
        wanted = " or ".join(layout.token_files)
        raise FileNotFoundError(f"The source {source!r} has no caption file: {wanted} is wanted.")
    captions = collections.defaultdict(list)
    for position, line in _lines(token_file, problems):
        if match := _TOKEN_LINE.fullmatch(line):
            captions[match["name"].strip()].append(match["caption"])
        else:
            problems.add("malformed line", position)
    folders = [os.path.join(source, folder) for folder in layout.image_folders]
    folder = next(filter(tf.io.gfile.isdir, folders), folders[-1])
    images = []
    for split, name in _split_names(source, layout, problems):
        if name not in captions:
            problems.add("listed image without captions", name)
        path = os.path.join(folder, name)
        images.append(CaptionedImage(name, split, tuple(captions.get(name, ())), path))
    for name in sorted(captions.keys() - {image.image_id for image in images}):
        problems.add("image in no split", name)
    return images


def _split_names(source: str, layout: Layout, problems: Problems) -> list[tuple[str, str]]:
    lists = layout.split_lists
    split_files = {split: _first_file(source, layout, names) for split, names in lists.items()}
    if not any(split_files.values()):
        wanted = " or ".join(name for names in lists.values() for name in names)
        raise FileNotFoundError(
            f"The source {source!r} has no split list: {wanted} is wanted, or the dataset karpathy "
            f"with Karpathy's {layout.karpathy_file}, which holds the split itself."
        )
    return [
        (split, name if os.path.splitext(name)[1] else f"{name}.jpg")
        for split, path in split_files.items()
        if path
        for name in (line.strip() for _, line in _lines(path, problems))
    ]


def _first_file(source: str, layout: Layout, names: tuple[str, ...]) -> str | None:
    paths = [os.path.join(source, folder, name) for name in names for folder in layout.text_folders]
    return next(filter(tf.io.gfile.exists, paths), None)


def _lines(path: str, problems: Problems) -> Iterator[tuple[str, str]]:
    """Yields `file:line` and the text of every line that is not blank."""
    with tf.io.gfile.GFile(path, "rb") as file:
        # The lines of bytes end at CR and LF only; those of text also at characters of captions.
        lines = file.read().removeprefix(b"\xef\xbb\xbf").splitlines()
    for number, line in enumerate(lines, start=1):
        position = f"{path}:{number}"
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            problems.add("line not in UTF-8", position)
            text = line.decode("cp1252", errors="replace")
        if text.strip():
            yield position, text

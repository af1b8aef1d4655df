"""IAPR TC-12: one annotation file an image, and Guillaumin's lists of 17,665 and 1,962 images."""

import html
import os
import re

import tensorflow as tf

from mrnn_tf import files, schema
from mrnn_tf.data.listing import CaptionedImage, Problems

_ANNOTATIONS = "annotations_complete_eng"
# Guillaumin's archive names them in the first way, other copies in the second.
_LISTS = {
    schema.TRAIN: ("iaprtc12_train_list.txt", "iapr_train_list.txt"),
    schema.TEST: ("iaprtc12_test_list.txt", "iapr_test_list.txt"),
}
_LIST_FOLDERS = ("", "iaprtc12", "iaprtc12.20091111", "IAPRTC")
# Not an XML parser: the files declare no encoding and are not all well-formed.
_DESCRIPTION = re.compile(r"<DESCRIPTION>(.*?)(?:</?[A-Z]+>|\Z)", re.DOTALL)


def read(source: str, problems: Problems) -> list[CaptionedImage]:
    """The images of the published lists, each sentence of a description being a caption.

    The archives unpack to `iaprtc12` (annotations and images) and `iaprtc12.20091111` or `IAPRTC`
    (the lists, with lines like `00/25`): both may lie in `source`, or their content. There is no
    validation list.
    """
    roots = (source, os.path.join(source, "iaprtc12"))
    root = next((r for r in roots if tf.io.gfile.isdir(os.path.join(r, _ANNOTATIONS))), None)
    if root is None:
        raise FileNotFoundError(f"The source {source!r} has no folder {_ANNOTATIONS}.")
    folder = os.path.join(root, _ANNOTATIONS)
    annotated = {
        os.path.relpath(os.path.join(directory, name), folder).removesuffix(".eng")
        for directory, _, names in tf.io.gfile.walk(folder)
        for name in names
        if name.endswith(".eng")
    }
    images = []
    for split, image_id in _listed_ids(source):
        path = os.path.join(folder, f"{image_id}.eng")
        captions = _sentences(path) if image_id in annotated else ()
        if not captions:
            problems.add("listed image without captions", image_id)
        picture = os.path.join(root, "images", f"{image_id}.jpg")
        images.append(CaptionedImage(image_id, split, captions, picture))
    for image_id in sorted(annotated - {image.image_id for image in images}):
        problems.add("image in no split", image_id)
    return images


def _listed_ids(source: str) -> list[tuple[str, str]]:
    listed = []
    for split, names in _LISTS.items():
        paths = (os.path.join(source, folder, name) for folder in _LIST_FOLDERS for name in names)
        path = next(filter(tf.io.gfile.exists, paths), None)
        if path is None:
            wanted, archive = " or ".join(names), "Guillaumin's archive iaprtc12.20091111"
            raise FileNotFoundError(f"The source {source!r} has no list {wanted}: see {archive}.")
        listed += [(split, image_id) for image_id in files.read_text(path).split()]
    return listed


def _sentences(path: str) -> tuple[str, ...]:
    with tf.io.gfile.GFile(path, "rb") as file:
        # Windows-1252 is ISO-8859-1 with quotes and dashes in the place of control characters.
        text = file.read().decode("cp1252", errors="replace")
    description = _DESCRIPTION.search(text)
    # Unescaped first, for an entity such as `&quot;` ends in the separator of sentences.
    sentences = html.unescape(description[1]).split(";") if description else ()
    return tuple(filter(None, map(str.strip, sentences)))

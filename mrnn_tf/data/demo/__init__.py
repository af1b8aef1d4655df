"""The embedded dataset `demo`: captioned pictures of small scenes, rendered from a seed.

The test split holds pairs (thing, colour) and triples (thing, relation, thing) that training does
not, so a model does well there only by seeing what is in the picture.
"""

import json
import os
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from mrnn_tf import files, schema
from mrnn_tf.data.demo import captions, draw
from mrnn_tf.data.demo.scene import Scene, sample
from mrnn_tf.errors import UserError

CAPTIONS_FILE = "captions.jsonl"  # written last: its presence means "whole"
NOTE_FILE = "demo.json"
VERSION = 2  # of the pictures and captions made from a seed
SHARES = {schema.VAL: 0.1, schema.TEST: 2 / 15}


def scenes(seed: int, images: int) -> Iterator[tuple[str, str, Scene, np.random.Generator]]:
    """Name, split, scene and the generator that goes on to describe and then draw it."""
    counts = {split: round(images * share) for split, share in SHARES.items()}
    counts = {schema.TRAIN: images - sum(counts.values()), **counts}
    for part, (split, count) in enumerate(counts.items()):
        for index in range(count):
            rng = np.random.default_rng([seed, part, index])
            yield f"{split}-{index:05d}", split, sample(rng, split, index), rng


def write(folder: str, seed: int = 0, images: int = 1500) -> int:
    """Writes `images/*.jpg` and `captions.jsonl` unless they are there; returns how many images.

    Refuses a folder with other captions.
    """
    if images < 1:
        raise UserError(f"`images` must be 1 or more, received {images}.")
    listing, note = os.path.join(folder, CAPTIONS_FILE), os.path.join(folder, NOTE_FILE)
    wanted = {"version": VERSION, "seed": seed, "images": images}
    if tf.io.gfile.exists(listing):
        present = "captions of other images"
        if tf.io.gfile.exists(note):
            present = files.read_json(note, "the note of a demo dataset is wanted")
        if present != wanted:
            raise UserError(
                f"`folder` {folder} must be empty or hold the demo dataset {wanted}, "
                f"but it holds {present}: delete it or choose another folder."
            )
        return images
    tf.io.gfile.makedirs(os.path.join(folder, "images"))
    lines = []
    for name, split, scene, rng in scenes(seed, images):
        path = f"images/{name}.jpg"
        texts = [text for _, text in captions.describe(scene, rng)]
        lines.append(json.dumps({"image": path, "captions": texts, "split": split}) + "\n")
        with tf.io.gfile.GFile(os.path.join(folder, path), "wb") as file:
            draw.render(scene, rng).save(file, "JPEG", quality=90)
    files.write_json(note, wanted)
    files.write_whole(listing, "".join(lines))
    return images

"""A tiny dataset of records with features that the captions depend on."""

import json
from pathlib import Path

import numpy as np
import tensorflow as tf

from mrnn_tf import schema, text
from mrnn_tf.data import records

COLOURS = ("red", "green", "blue")
THINGS = ("dog", "cat", "car", "boat")
IDENTITY = "features:tiny:12"
FEATURE_SIZE = 12


def captions_of(colour: int, thing: int) -> list[str]:
    noun = f"{COLOURS[colour]} {THINGS[thing]}"
    return [f"A {noun}.", f"There is a {noun} here", f"we can all see the very nice {noun} today"]


def picture(colour: int) -> bytes:
    """An image of one colour, as a PNG file."""
    pixels = np.zeros((12, 16, 3), np.uint8)
    pixels[..., colour] = 255
    return tf.io.encode_png(pixels).numpy()


def edit(path: str | Path, change=lambda content: None) -> None:
    """Changes the JSON of a marker, and leaves out its checksums, as an earlier release did."""
    content = json.loads(Path(path).read_text())
    del content["checksums"], content["checksum"]
    change(content)
    Path(path).write_text(json.dumps(content))


def photographs(folder: Path) -> None:
    """Writes pictures of one colour with captions, as the dataset `jsonl`."""
    folder.mkdir()
    lines = []
    for i in range(30):
        colour = i % len(COLOURS)
        (folder / f"{i}.png").write_bytes(picture(colour))
        captions = [f"A {COLOURS[colour]} picture.", f"Everything is {COLOURS[colour]} here"]
        split = schema.VAL if i >= 24 else schema.TRAIN
        lines.append({"image": f"{i}.png", "captions": captions, "split": split})
    (folder / "captions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_pictures(directory: str, count: int = 6) -> str:
    """Writes records that hold images only, and the second picture is broken."""
    tf.io.gfile.makedirs(directory)
    [path] = records.shard_paths(directory, schema.TEST, 1)
    with tf.io.TFRecordWriter(path) as writer:
        for i in range(count):
            colour = i % len(COLOURS)
            encoded = picture(colour) if i != 1 else b"no picture"
            captions = [f"All of it is {COLOURS[colour]}"]
            writer.write(records.serialize(f"{i}.png", captions, None, encoded))
    records.DatasetInfo(
        dataset="pictures",
        splits={schema.TEST: records.SplitCounts(count, count, 1)},
        stores=("images",),
        encoder=None,
        feature_size=None,
        tokenizer=text.SETTINGS,
        vocabulary_size=None,
        problems={},
        fingerprint="pictures",
        tool_version="0",
    ).save(directory)
    return directory


def write(
    directory: str,
    counts=(("train", 24), ("val", 12)),
    shards: int = 2,
    captioned: bool = True,
    pictures: bool = False,
    captions_each: int = 3,
) -> str:
    """Writes the records; image i shows colour i % 3 and thing i % 4."""
    tf.io.gfile.makedirs(directory)
    rng = np.random.default_rng(0)
    splits, training = {}, []
    for split, count in counts:
        for shard, path in enumerate(records.shard_paths(directory, split, shards)):
            with tf.io.TFRecordWriter(path) as writer:
                for i in range(shard, count, shards):
                    colour, thing = i % len(COLOURS), i % len(THINGS)
                    features = rng.normal(0, 0.05, FEATURE_SIZE).astype(np.float32)
                    features[colour] += 1
                    features[3 + thing] += 1
                    captions = captions_of(colour, thing)[:captions_each] if captioned else []
                    training += captions if split == schema.TRAIN else []
                    encoded = picture(colour) if pictures else None
                    writer.write(records.serialize(f"{split}-{i}.jpg", captions, features, encoded))
        captions = captions_each * count if captioned else 0
        splits[split] = records.SplitCounts(count, captions, shards)
    vocabulary = text.Vocabulary.build(training, min_count=2)
    if training:
        vocabulary.save(tf.io.gfile.join(directory, schema.VOCABULARY_FILE))
    records.DatasetInfo(
        dataset="tiny",
        splits=splits,
        stores=("features", "images") if pictures else ("features",),
        encoder={"identity": IDENTITY, "feature_size": FEATURE_SIZE},
        feature_size=FEATURE_SIZE,
        tokenizer=text.SETTINGS,
        vocabulary_size=len(vocabulary) if training else None,
        problems={},
        fingerprint="tiny",
        tool_version="0",
    ).save(directory)
    return directory

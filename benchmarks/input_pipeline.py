"""How fast records become batches, against reading the same records without decoding them.

    python benchmarks/input_pipeline.py [--data DIR]

Without --data it writes 2,000 images with five captions of realistic lengths and 2,048 features
each. Prints examples (captions) per second of both, their ratio, and the share of padding.
"""

import tempfile

import numpy as np
import tensorflow as tf
import timing
from absl import app, flags

from mrnn_tf import schema, text
from mrnn_tf.data import pipeline, records

_DATA = flags.DEFINE_string("data", None, "Records to read; by default synthetic ones.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 128, "Captions in a batch.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Measurements of each; the best counts.")


def main(_) -> None:
    directory = _DATA.value or _synthetic(tempfile.mkdtemp(prefix="mrnn-bench-"))
    info = records.DatasetInfo.load(directory)
    vocabulary = text.Vocabulary.load(tf.io.gfile.join(directory, schema.VOCABULARY_FILE))
    source = pipeline.Source(directory, schema.TRAIN, vocabulary)
    captions = info.splits[schema.TRAIN].captions
    batches = iter(pipeline.training_batches(source, _BATCH_SIZE.value, seed=0))
    serialized = tf.data.TFRecordDataset(info.shards(directory, schema.TRAIN)).batch(64)
    count, targets = captions // _BATCH_SIZE.value, []
    sides = {
        "reading only": lambda: [None for _ in serialized],
        "whole pipeline": lambda: targets.extend(
            next(batches)[schema.TARGET_IDS] for _ in range(count)
        ),
    }
    reading, decoding = timing.best_seconds(sides, _ROUNDS.value).values()
    reading, decoding = captions / reading, count * _BATCH_SIZE.value / decoding
    pads = sum(int(tf.math.count_nonzero(ids == schema.PAD_ID)) for ids in targets)
    words = sum(int(tf.size(ids)) for ids in targets) - pads
    print(f"reading only    {reading:10,.0f} captions/s")
    print(f"whole pipeline  {decoding:10,.0f} captions/s")
    print(f"ratio           {decoding / reading:10.3f}")
    print(f"padding         {pads / words:10.1%} of the words")


def _synthetic(directory: str) -> str:
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(2500)]
    paths = records.shard_paths(directory, schema.TRAIN, 4)
    for path in paths:
        with tf.io.TFRecordWriter(path) as writer:
            for i in range(500):
                # The lengths of Flickr8k: mean 10.8 words, standard deviation 3.8.
                lengths = np.clip(rng.normal(10.8, 3.8, 5).round().astype(int), 3, 30)
                captions = [" ".join(rng.choice(words, n)) for n in lengths]
                features = rng.random(2048, np.float32)
                writer.write(records.serialize(f"{path}-{i}", captions, features))
    text.Vocabulary((*schema.RESERVED_WORDS, *words)).save(f"{directory}/{schema.VOCABULARY_FILE}")
    splits = {schema.TRAIN: records.SplitCounts(2000, 10_000, len(paths))}
    records.DatasetInfo(
        "synthetic", splits, ("features",), None, 2048, text.SETTINGS, len(words) + 4, {}, "", ""
    ).save(directory)
    return directory


if __name__ == "__main__":
    app.run(main)

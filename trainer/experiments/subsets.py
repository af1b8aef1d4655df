"""Datasets with a part of the training images: what somebody with fewer photographs has."""

import itertools
import json
import random
from pathlib import Path

import numpy as np

from mrnn_tf import schema
from mrnn_tf.data import pipeline, records
from trainer.options import PrepareOptions
from trainer.prepare import prepare


def make(data: str, photographs: int, folder: Path, seed: int = 0) -> str:
    """Prepares a dataset with some training images, chosen by the seed, and the validation images.

    Smaller ones are parts of larger ones. The vocabulary is that of the chosen captions.
    """
    output, source = folder / f"data-{photographs}", folder / "source"
    if not (output / schema.DATASET_FILE).exists():
        if not (source / "names.txt").exists():
            _write_source(data, source)
        captions = dict(pipeline.captions_by_id(data, schema.TRAIN))
        chosen = random.Random(seed).sample(sorted(captions), len(captions))[:photographs]
        listed = ((schema.TRAIN, name, captions[name]) for name in chosen)
        validation = pipeline.captions_by_id(data, schema.VAL)
        listed = itertools.chain(listed, ((schema.VAL, *image) for image in validation))
        lines = (
            json.dumps({"image": name, "captions": texts, "split": split}) + "\n"
            for split, name, texts in listed
        )
        listing = source / f"{photographs}.jsonl"
        listing.write_text("".join(lines))
        files = {"features": (source / "features.npy",), "names": source / "names.txt"}
        name = (records.DatasetInfo.load(data).identity,)
        prepare(
            PrepareOptions(
                dataset="jsonl", source=listing, output=output, encoder_name=name, **files
            )
        )
    return str(output)


def _write_source(data: str, source: Path) -> None:
    """The features of all images, and their names."""
    source.mkdir(parents=True, exist_ok=True)
    names, features = [], []
    for split in (schema.TRAIN, schema.VAL):
        for batch in pipeline.image_batches(pipeline.Source(data, split, None), 64):
            names += [name.decode() for name in batch[schema.IDS].numpy()]
            features.append(batch[schema.FEATURES].numpy())
    np.save(source / "features.npy", np.concatenate(features))
    (source / "names.txt").write_text("\n".join(names) + "\n")  # last: it says that all is there

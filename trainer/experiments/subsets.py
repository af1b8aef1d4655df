"""Datasets with a part of the training images: what somebody with fewer photographs has."""

import json
import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from mrnn_tf import schema
from mrnn_tf.data import pipeline, records
from trainer.options import PrepareOptions
from trainer.prepare import prepare


def name(photographs: int) -> str:
    """The name of the folder of a dataset with this number of training images."""
    return f"data-{photographs}"


def make(data: str, photographs: int, folder: Path, seed: int = 0) -> str:
    """Prepares a dataset with some training images, chosen by the seed, and all of other splits.

    Smaller datasets are parts of larger ones. The vocabulary is that of the chosen captions.
    """
    output, source = folder / name(photographs), folder / "source"
    if not (output / schema.DATASET_FILE).exists():
        info = records.DatasetInfo.load(data)
        if not (source / "names.txt").exists():
            _write_source(data, source, info.splits)
        captions = dict(pipeline.captions_by_id(data, schema.TRAIN))
        chosen = random.Random(seed).sample(sorted(captions), len(captions))[:photographs]
        listed = {schema.TRAIN: ((image, captions[image]) for image in chosen)}
        others = [split for split in info.splits if split != schema.TRAIN]
        listed |= {split: pipeline.captions_by_id(data, split) for split in others}
        lines = (
            json.dumps({"image": image, "captions": texts, "split": own}) + "\n"
            for own, images in listed.items()
            for image, texts in images
        )
        listing = source / f"{photographs}.jsonl"
        listing.write_text("".join(lines))
        files = {"features": (source / "features.npy",), "names": source / "names.txt"}
        prepare(
            PrepareOptions(
                dataset="jsonl",
                source=listing,
                output=output,
                encoder_name=(info.identity,),
                **files,
            )
        )
    return str(output)


def _write_source(data: str, source: Path, splits: Iterable[str]) -> None:
    """The features of all images of some splits, and their names."""
    source.mkdir(parents=True, exist_ok=True)
    names, features = [], []
    for split in splits:
        for batch in pipeline.image_batches(pipeline.Source(data, split, None), 64):
            names += [name.decode() for name in batch[schema.IDS].numpy()]
            features.append(batch[schema.FEATURES].numpy())
    np.save(source / "features.npy", np.concatenate(features))
    (source / "names.txt").write_text("\n".join(names) + "\n")  # last: it says that all is there

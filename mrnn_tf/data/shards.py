"""Planning, writing and checking the shards of a dataset.

A shard is described by a manifest (JSON lines: id, path or feature row, captions) and written by
one call of `write_shard`, on any machine; its report appears last and says that it is whole.
"""

import dataclasses
import functools
import json
import os
import random
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from mrnn_tf import checksums, files, schema
from mrnn_tf.data import records
from mrnn_tf.data.features import FeatureTable
from mrnn_tf.data.listing import CaptionedImage
from mrnn_tf.data.records import SplitCounts
from mrnn_tf.errors import UserError
from mrnn_tf.vision import images
from mrnn_tf.vision.encoders import Encoder

_PROBLEMS = {
    tf.errors.NotFoundError: "image file is missing",
    tf.errors.FailedPreconditionError: "image file cannot be read",
    tf.errors.PermissionDeniedError: "image file cannot be read",
    tf.errors.InvalidArgumentError: "image cannot be decoded",
}
_IMAGES_AT_ONCE = 32


@dataclasses.dataclass(frozen=True)
class Shard:
    """One shard to write: where its records go, and the path of its working files."""

    split: str
    images: int
    output: str
    work: str  # without an ending

    @property
    def manifest(self) -> str:
        return f"{self.work}.jsonl"

    @property
    def report(self) -> str:
        return f"{self.work}.report.json"

    @property
    def is_written(self) -> bool:
        return tf.io.gfile.exists(self.report) and tf.io.gfile.exists(self.output)


class Skipped(NamedTuple):
    """An image that could not be read."""

    problem: str
    image_id: str
    detail: str


class _Loaded(NamedTuple):
    row: dict  # of the manifest
    encoded: bytes | None = None  # as in its file
    picture: bytes | None = None
    pixels: tf.Tensor | tuple[tf.Tensor, ...] | None = None  # as the encoder takes them


def plan(
    listing: Sequence[CaptionedImage],
    output: str,
    work: str,
    images_per_shard: int,
    seed: int,
    table: FeatureTable | None = None,
) -> list[Shard]:
    """Divides every split into shards and writes their manifests; training images are shuffled."""
    shards = []
    for split in schema.SPLITS:
        chosen = [image for image in listing if image.split == split]
        if split == schema.TRAIN:
            random.Random(seed).shuffle(chosen)
        count = -(-len(chosen) // images_per_shard)
        for index, path in enumerate(records.shard_paths(output, split, count)):
            base = tf.io.gfile.join(work, path.rsplit("/", 1)[-1])
            lines = []
            for image in chosen[index::count]:
                row = table.row(image.image_id) if table else None
                lines.append(json.dumps({**dataclasses.asdict(image), "row": row}) + "\n")
            shards.append(Shard(split, len(lines), path, base))
            files.write_whole(shards[-1].manifest, "".join(lines))
    return shards


def write_shard(
    shard: Shard,
    stores: Sequence[str],
    encoder: Encoder | None,
    table: FeatureTable | None,
    done: Callable[[int], None] = lambda images: None,
) -> None:
    """Turns a manifest into records, by batches: the next one is decoded while one is encoded.

    `done` gets the number of images of every batch.
    """
    with tf.io.gfile.GFile(shard.manifest) as file:
        rows = [json.loads(line) for line in file]
    written, captions, pictures, skipped = 0, 0, 0, []
    # A runner may do an item twice; what a kill leaves goes with the working folder.
    partial = f"{shard.manifest}.{uuid.uuid4().hex}.partial"
    images.decode.get_concrete_function()  # threads that trace at once would warn
    if encoder:
        encoder.prepare.get_concrete_function()
    with files.removed_on_failure(partial):
        with ThreadPoolExecutor() as pool, tf.io.TFRecordWriter(partial) as writer:
            load = functools.partial(_load, stores=stores, encoder=encoder, table=table)
            for loaded in _load_ahead(pool, load, rows):
                skipped += [image for image in loaded if isinstance(image, Skipped)]
                whole = [image for image in loaded if isinstance(image, _Loaded)]
                features = _features(whole, encoder, table)
                for image, vector in zip(whole, features, strict=True):
                    texts = image.row["captions"]
                    stored = image.encoded, image.picture
                    writer.write(records.serialize(image.row["image_id"], texts, vector, *stored))
                    captions += len(texts)
                    pictures += image.picture is not None
                written += len(whole)
                done(len(loaded))
        tf.io.gfile.rename(partial, shard.output, overwrite=True)
    counts = {"images": written, "captions": captions, "pictures": pictures}
    folder, name = os.path.split(shard.output)
    checksums.write(shard.report, {**counts, "skipped": skipped}, folder, [name])


def _load_ahead(
    pool: ThreadPoolExecutor, load: Callable[[dict], _Loaded | Skipped], rows: Sequence[dict]
) -> Iterator[list[_Loaded | Skipped]]:
    """The loaded images of each batch of rows; meanwhile those of the next one are loaded."""
    starts = range(0, len(rows), _IMAGES_AT_ONCE)
    batches = (pool.map(load, rows[start : start + _IMAGES_AT_ONCE]) for start in starts)
    current = next(batches, None)
    while current is not None:
        following = next(batches, None)
        yield list(current)
        current = following


def collect(shards: Sequence[Shard]) -> tuple[dict[str, SplitCounts], int, list[Skipped]]:
    """Checks every shard against the plan; returns the splits, the pictures and what is skipped."""
    totals, pictures, skipped = {}, 0, []
    unwritten = [shard.output for shard in shards if not tf.io.gfile.exists(shard.report)]
    if unwritten:
        raise UserError(
            f"{len(unwritten)} of {len(shards)} shards were not written, the first is "
            f"{unwritten[0]}: run the same command again to finish."
        )
    for shard in shards:
        remedy = f"delete {shard.report} and run the same command again"
        folder, wanted = os.path.dirname(shard.output), "the report of a shard is wanted"
        report, sums = checksums.read(shard.report, wanted, folder, remedy)
        sums.check()
        count = records.count_records(shard.output)
        if count != report["images"] or count + len(report["skipped"]) != shard.images:
            raise UserError(
                f"{shard.output} holds {count} records of {shard.images} planned images with "
                f"{len(report['skipped'])} skipped: delete it and run the same command again."
            )
        images, captions, number = totals.get(shard.split, (0, 0, 0))
        totals[shard.split] = (images + count, captions + report["captions"], number + 1)
        pictures += report["pictures"]
        skipped += [Skipped(*image) for image in report["skipped"]]
    splits = {split: SplitCounts(*counts) for split, counts in totals.items()}
    return splits, pictures, skipped


def _load(
    row: dict, stores: Sequence[str], encoder: Encoder | None, table: FeatureTable | None
) -> _Loaded | Skipped:
    """Reads what is wanted of an image file.

    An image with features of a table needs its file for a picture only, and does without.
    """
    if encoder is None and not {schema.IMAGES, schema.PICTURES} & {*stores}:
        return _Loaded(row)
    try:
        with tf.io.gfile.GFile(row["path"], "rb") as file:
            encoded = file.read()
        image = images.decode(encoded)
    except tuple(_PROBLEMS) as error:
        if table and schema.IMAGES not in stores:
            return _Loaded(row)
        # Of an error in a graph the last line; without the names of nodes.
        [*_, reason] = re.split(r"\n|}} ", re.sub(r"\s+\[(\[|Op).*", "", error.message))
        detail = reason if row["path"] in reason else f"{row['path']}: {reason}"
        return Skipped(_PROBLEMS[type(error)], row["image_id"], detail)
    return _Loaded(
        row,
        encoded if schema.IMAGES in stores else None,
        images.picture(image) if schema.PICTURES in stores else None,
        encoder.prepare(image) if encoder else None,
    )


def _features(
    whole: Sequence[_Loaded], encoder: Encoder | None, table: FeatureTable | None
) -> Sequence[np.ndarray | None]:
    if encoder and whole:
        pixels = [image.pixels for image in whole]
        stacked = tf.nest.map_structure(lambda *windows: tf.stack(windows), *pixels)
        features = encoder.encode(stacked).numpy()
        ids = [image.row["image_id"] for image in whole]
        records.check_finite(f"The encoder {encoder.identity}", ids, features)
        return features
    if table:
        return table.features([image.row["row"] for image in whole])
    return [None] * len(whole)

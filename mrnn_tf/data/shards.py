"""Planning, writing and checking the shards of a dataset.

A shard is described by a manifest (JSON lines: id, path or feature row, captions) and written by
one call of `write_shard`, on any machine; its report appears last and says that it is whole.
"""

import collections
import dataclasses
import functools
import json
import os
import random
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from mrnn_tf import checksums, files, schema
from mrnn_tf.data import records
from mrnn_tf.data.features import FeatureTable
from mrnn_tf.data.listing import CaptionedImage
from mrnn_tf.data.records import SplitCounts
from mrnn_tf.errors import UserError
from mrnn_tf.rows import successes
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


_WINDOWS = "windows"  # of a batch, as the encoder takes them
_Batch = tuple[list[_Loaded | Skipped], Any]  # and the windows of those that were loaded


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
    with files.removed_on_failure(partial):
        with tf.io.TFRecordWriter(partial) as writer:
            for batch, windows in _load_ahead(rows, tuple(stores), encoder, table):
                skipped += [image for image in batch if isinstance(image, Skipped)]
                whole = [image for image in batch if isinstance(image, _Loaded)]
                features = _features(whole, windows, encoder, table)
                for image, vector in zip(whole, features, strict=True):
                    texts = image.row["captions"]
                    stored = image.encoded, image.picture
                    writer.write(records.serialize(image.row["image_id"], texts, vector, *stored))
                    captions += len(texts)
                    pictures += image.picture is not None
                written += len(whole)
                done(len(batch))
        tf.io.gfile.rename(partial, shard.output, overwrite=True)
    counts = {"images": written, "captions": captions, "pictures": pictures}
    folder, name = os.path.split(shard.output)
    checksums.write(shard.report, {**counts, "skipped": skipped}, folder, [name])


def _load_ahead(
    rows: Sequence[dict],
    stores: tuple[str, ...],
    encoder: Encoder | None,
    table: FeatureTable | None,
) -> Iterator[_Batch]:
    """The loaded images of each batch of rows; meanwhile those of the next one are loaded."""
    starts = range(0, len(rows), _IMAGES_AT_ONCE)
    batches = [rows[start : start + _IMAGES_AT_ONCE] for start in starts]
    if encoder is None and not {schema.IMAGES, schema.PICTURES} & {*stores}:
        yield from (([_Loaded(row) for row in batch], None) for batch in batches)
        return
    load = functools.partial(_load, stores=stores, encoder=encoder, table=table)
    with ThreadPoolExecutor(1) as thread:
        waiting = collections.deque()
        for batch in batches:
            waiting.append(thread.submit(load, batch))
            if len(waiting) > 1:
                yield waiting.popleft().result()
        yield from (future.result() for future in waiting)


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
    rows: Sequence[dict],
    stores: tuple[str, ...],
    encoder: Encoder | None,
    table: FeatureTable | None,
) -> _Batch:
    """Reads what is wanted of image files; the row that fails is read again for the reason.

    An image with features of a table needs its file for a picture only, and does without.
    """
    read_one, read_all = _readers(stores, encoder)
    numbers, values = read_all([row["path"] or "" for row in rows])
    windows = values.pop(_WINDOWS, None)
    values = {name: tensor.numpy() for name, tensor in values.items()}
    batch: list[_Loaded | Skipped] = []
    found = {number: place for place, number in enumerate(numbers.numpy())}
    for number, row in enumerate(rows):
        if number in found:
            stored = (values.get(name) for name in (schema.IMAGES, schema.PICTURES))
            own = (tensors if tensors is None else tensors[found[number]] for tensors in stored)
            batch.append(_Loaded(row, *own))
        elif table and schema.IMAGES not in stores:
            batch.append(_Loaded(row))
        else:
            batch.append(_reason(row, read_one))
    return batch, windows


def _reason(row: dict, read: Callable) -> Skipped:
    """Why an image cannot be read."""
    path = row["path"] or ""
    try:
        read(path)
    except tuple(_PROBLEMS) as error:
        # Of an error in a graph the last line; without the names of nodes.
        [*_, reason] = re.split(r"\n|}} ", re.sub(r"\s+\[(\[|Op).*", "", error.message))
        detail = reason if path in reason else f"{path}: {reason}"
        return Skipped(_PROBLEMS[type(error)], row["image_id"], detail)
    raise UserError(f"{path} could be read at the second attempt only: try again.")


@functools.lru_cache(1)
def _readers(stores: tuple[str, ...], encoder: Encoder | None) -> tuple[Callable, Callable]:
    """Functions of a path, and of the paths [B] of a batch, in graphs of their own."""

    @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
    def read(path: tf.Tensor) -> dict[str, Any]:
        encoded = tf.io.read_file(path)
        image = images.decode(encoded)
        values = {}
        if schema.IMAGES in stores:
            # Only what can be decoded is stored; a control dependency would be optimised away.
            values[schema.IMAGES] = tf.where(tf.size(image) > 0, encoded, b"")
        if schema.PICTURES in stores:
            values[schema.PICTURES] = images.picture(image)
        if encoder:
            values[_WINDOWS] = encoder.prepare(image)
        return values

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def read_all(paths: tf.Tensor) -> tuple[tf.Tensor, dict[str, Any]]:
        return successes(read, paths, os.cpu_count() or 1)

    return read, read_all


def _features(
    whole: Sequence[_Loaded], windows: Any, encoder: Encoder | None, table: FeatureTable | None
) -> Sequence[np.ndarray | None]:
    if encoder and whole:
        features = encoder.encode(windows).numpy()
        ids = [image.row["image_id"] for image in whole]
        records.check_finite(f"The encoder {encoder.identity}", ids, features)
        return features
    if table:
        return table.features([image.row["row"] for image in whole])
    return [None] * len(whole)

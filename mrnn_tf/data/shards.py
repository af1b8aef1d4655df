"""Planning, writing and checking the shards of a dataset.

A shard is described by a manifest (JSON lines: id, path or feature row, captions) and written by
one call of `write_shard`, on any machine; its report appears last and says that it is whole.
"""

import dataclasses
import json
import os
import random
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

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
    """One shard to write: where its manifest is and where its records and report go."""

    split: str
    images: int
    manifest: str
    output: str
    report: str


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
            files.write_whole(f"{base}.jsonl", "".join(lines))
            shards.append(Shard(split, len(lines), f"{base}.jsonl", path, f"{base}.report.json"))
    return shards


def write_shard(
    shard: Shard, stores: Sequence[str], encoder: Encoder | None, table: FeatureTable | None
) -> None:
    """Turns a manifest into records; a batch of images is all that is in memory at once."""
    if tf.io.gfile.exists(shard.report) and tf.io.gfile.exists(shard.output):
        return
    with tf.io.gfile.GFile(shard.manifest) as file:
        rows = [json.loads(line) for line in file]
    written, captions, skipped = 0, 0, []
    # A runner may do an item twice; what a kill leaves goes with the working folder.
    partial = f"{shard.manifest}.{uuid.uuid4().hex}.partial"
    images.decode.get_concrete_function()  # threads that trace it at once would warn
    with ThreadPoolExecutor() as pool, tf.io.TFRecordWriter(partial) as writer:
        for start in range(0, len(rows), _IMAGES_AT_ONCE):
            batch = rows[start : start + _IMAGES_AT_ONCE]
            loaded = list(pool.map(lambda row: (row, *_load(row, stores, encoder)), batch))
            skipped += [(problem, row["image_id"]) for row, problem, *_ in loaded if problem]
            whole = [(row, *image) for row, problem, *image in loaded if not problem]
            features = _features(whole, encoder, table)
            for (row, encoded, _), vector in zip(whole, features, strict=True):
                writer.write(records.serialize(row["image_id"], row["captions"], vector, encoded))
                captions += len(row["captions"])
            written += len(whole)
    tf.io.gfile.rename(partial, shard.output, overwrite=True)
    report = {"images": written, "captions": captions, "skipped": skipped}
    folder, name = os.path.split(shard.output)
    checksums.write(shard.report, report, folder, [name])


def finished_images(shards: Sequence[Shard]) -> int:
    """How many images the shards that are whole account for."""
    names = set(tf.io.gfile.listdir(os.path.dirname(shards[0].report)))
    return sum(shard.images for shard in shards if os.path.basename(shard.report) in names)


def collect(shards: Sequence[Shard]) -> tuple[dict[str, SplitCounts], list[tuple[str, str]]]:
    """Checks every shard against the plan; returns the splits and what was skipped."""
    totals, skipped = {}, []
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
        skipped += map(tuple, report["skipped"])
    return {split: SplitCounts(*counts) for split, counts in totals.items()}, skipped


def _load(row: dict, stores: Sequence[str], encoder: Encoder | None) -> tuple:
    """The kind of an image's problem or `None`, the bytes to store, the pixels to encode."""
    if encoder is None and schema.IMAGES not in stores:
        return None, None, None
    try:
        with tf.io.gfile.GFile(row["path"], "rb") as file:
            encoded = file.read()
        image = images.decode(encoded)
    except tuple(_PROBLEMS) as error:
        return _PROBLEMS[type(error)], None, None
    pixels = encoder.prepare(image) if encoder else None
    return None, encoded if schema.IMAGES in stores else None, pixels


def _features(
    whole: Sequence[tuple], encoder: Encoder | None, table: FeatureTable | None
) -> Sequence[np.ndarray | None]:
    """The features of images as `write_shard` has them: row, encoded, pixels."""
    if encoder and whole:
        features = encoder.encode(tf.stack([pixels for *_, pixels in whole])).numpy()
        ids = [row["image_id"] for row, *_ in whole]
        records.check_finite(f"The encoder {encoder.identity}", ids, features)
        return features
    if table:
        return np.asarray(table.array[[row["row"] for row, *_ in whole]], np.float32)
    return [None] * len(whole)

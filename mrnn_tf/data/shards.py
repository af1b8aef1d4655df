"""Planning, writing and checking the shards of a dataset.

A shard is described by a manifest (JSON lines: id, path or feature row, captions) and written by
one call of `write_shard`, on any machine; its report appears last and says that it is whole.
"""

import concurrent.futures
import dataclasses
import itertools
import json
import random
import uuid
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from mrnn_tf import files, schema
from mrnn_tf.data import records
from mrnn_tf.data.features import FeatureTable
from mrnn_tf.data.listing import CaptionedImage
from mrnn_tf.errors import UserError
from mrnn_tf.vision import images
from mrnn_tf.vision.encoders import Encoder

MISSING_IMAGE = "image file is missing"
UNREADABLE_IMAGE = "image file cannot be read"
BROKEN_IMAGE = "image cannot be decoded"
_IMAGES_AT_ONCE = 32


@dataclasses.dataclass(frozen=True)
class Shard:
    """One shard to write: where its manifest is and where its records and report go."""

    split: str
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
            rows = [
                {
                    "id": image.image_id,
                    "captions": image.captions,
                    "path": image.path,
                    "row": table.row(image.image_id) if table else None,
                }
                for image in chosen[index::count]
            ]
            shard = Shard(split, base + ".jsonl", path, base + ".report.json")
            files.write_whole(shard.manifest, "".join(json.dumps(row) + "\n" for row in rows))
            shards.append(shard)
    return shards


def write_shard(
    shard: Shard,
    stores: Sequence[str],
    encoder: Encoder | None = None,
    table: FeatureTable | None = None,
) -> None:
    """Turns a manifest into records; a batch of images is all that is in memory at once."""
    if tf.io.gfile.exists(shard.report) and tf.io.gfile.exists(shard.output):
        return
    written, captions, skipped = 0, 0, []
    # A runner may do an item twice; what a kill leaves goes with the working folder.
    partial = f"{shard.manifest}.{uuid.uuid4().hex}.partial"
    with (
        concurrent.futures.ThreadPoolExecutor() as pool,
        tf.io.TFRecordWriter(partial) as writer,
    ):
        for batch in _batches(_read_manifest(shard.manifest)):
            loaded = list(pool.map(lambda row: (row, *_load(row, stores, encoder)), batch))
            skipped += [(problem, row["id"]) for row, problem, *_ in loaded if problem]
            whole = [(row, *image) for row, problem, *image in loaded if not problem]
            features = _features(whole, encoder, table)
            for (row, encoded, _), vector in zip(whole, features, strict=True):
                writer.write(records.serialize(row["id"], row["captions"], vector, encoded))
                captions += len(row["captions"])
            written += len(whole)
    tf.io.gfile.rename(partial, shard.output, overwrite=True)
    files.write_json(shard.report, {"images": written, "captions": captions, "skipped": skipped})


def collect(
    shards: Sequence[Shard],
) -> tuple[dict[str, records.SplitCounts], list[tuple[str, str]]]:
    """Checks every shard against its manifest; returns the splits and what was skipped."""
    totals, skipped = {}, []
    unwritten = [shard.output for shard in shards if not tf.io.gfile.exists(shard.report)]
    if unwritten:
        raise UserError(
            f"{len(unwritten)} of {len(shards)} shards were not written, the first is "
            f"{unwritten[0]}: run the same command again to finish."
        )
    for shard in shards:
        report = _read_report(shard)
        planned = sum(1 for _ in _read_manifest(shard.manifest))
        count = records.count_records(shard.output)
        if (count, planned) != (report["images"], report["images"] + len(report["skipped"])):
            raise UserError(
                f"{shard.output} holds {count} records of {planned} planned images with "
                f"{len(report['skipped'])} skipped: delete it and run the same command again."
            )
        split = totals.get(shard.split, records.SplitCounts(0, 0, 0))
        totals[shard.split] = records.SplitCounts(
            split.images + count, split.captions + report["captions"], split.shards + 1
        )
        skipped += [tuple(pair) for pair in report["skipped"]]
    return totals, skipped


class ShardProgress:
    """How many images the shards finished so far account for; each report is read once."""

    def __init__(self, shards: Sequence[Shard]):
        self._waiting = list(shards)
        self._images = 0

    def __call__(self) -> int:
        for shard in [s for s in self._waiting if tf.io.gfile.exists(s.report)]:
            report = _read_report(shard)
            self._images += report["images"] + len(report["skipped"])
            self._waiting.remove(shard)
        return self._images


def _load(row: dict, stores: Sequence[str], encoder: Encoder | None) -> tuple:
    """The kind of an image's problem or `None`, the bytes to store, the pixels to encode."""
    if encoder is None and schema.IMAGES not in stores:
        return None, None, None
    try:
        with tf.io.gfile.GFile(row["path"], "rb") as file:
            encoded = file.read()
        image = images.decode(encoded)
    except tf.errors.NotFoundError:
        return MISSING_IMAGE, None, None
    except (tf.errors.FailedPreconditionError, tf.errors.PermissionDeniedError):
        return UNREADABLE_IMAGE, None, None
    except tf.errors.InvalidArgumentError:
        return BROKEN_IMAGE, None, None
    pixels = encoder.prepare(image) if encoder else None
    return None, encoded if schema.IMAGES in stores else None, pixels


def _features(
    whole: Sequence[tuple], encoder: Encoder | None, table: FeatureTable | None
) -> Sequence[np.ndarray | None]:
    """The features of images as `write_shard` has them: row, encoded, pixels."""
    if encoder and whole:
        return encoder.encode(tf.stack([pixels for *_, pixels in whole])).numpy()
    if table:
        return np.asarray(table.array[[row["row"] for row, *_ in whole]], np.float32)
    return [None] * len(whole)


def _read_manifest(path: str) -> Iterator[dict]:
    with tf.io.gfile.GFile(path) as file:
        for line in file:
            yield json.loads(line)


def _read_report(shard: Shard) -> dict:
    return files.read_json(shard.report, "the report of a shard is wanted")


def _batches(items: Iterator) -> Iterator[list]:
    while batch := list(itertools.islice(items, _IMAGES_AT_ONCE)):
        yield batch

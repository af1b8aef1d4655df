"""Writes images into a vector database, and deletes them there, by a job that can be resumed.

A shard of records is a part of the job. Its images are upserted by their ids, so a part that is
done twice, or by half and again, leaves every image there once; the database itself notes the parts
that are done.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

import mrnn_tf
from export import index_parts
from mrnn_tf import batch, files, versions
from mrnn_tf.batch import beam
from mrnn_tf.data import metadata
from mrnn_tf.errors import UserError
from mrnn_tf.retrieval import milvus
from mrnn_tf.retrieval.milvus import MilvusStore, StoredImage
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.sentences import check_searchable
from mrnn_tf.run import Run
from mrnn_tf.split import FeatureReader

_DELETION = "deletion"  # the part of a job that comes first
_ERROR = "error"


@dataclasses.dataclass(frozen=True)
class Job:
    """What a worker needs to know: paths and addresses, which it opens itself."""

    key: str  # what tells this command from another one
    model: str
    data: str | None
    metadata: str | None
    address: str  # of the collection, for workers
    lock: str | None  # the local file: Milvus Lite takes one writer at a time

    @contextlib.contextmanager
    def writing(self):
        """Waits for its turn to write."""
        with files.locked(self.lock, wait=True) if self.lock else contextlib.nullcontext():
            yield


@dataclasses.dataclass(frozen=True)
class StorePart:
    """A shard to be stored."""

    name: str
    source: str
    split: str


def fill(options: Any) -> str:
    """Upserts the images of a dataset, after deleting some, and returns the collection's address.

    The options are those of `export.index`.
    """
    beam_options = batch.parse_options(options.beam_flags)
    model = versions.newest(options.model) or options.model
    run = Run.from_saved_model(model)
    check_searchable(run.network.model)
    reader = index_parts.open_dataset(run, model, options.data) if options.data else None
    parts = _plan(reader, options.splits) if reader else []
    facts = {**run.fingerprints, milvus.SIZE: str(run.network.model.multimodal_size)}
    deleted = _read_ids(options.delete) if options.delete else []
    described = len(metadata.read(options.metadata)) if options.metadata else 0

    place = milvus.Address.parse(options.uri)
    with MilvusStore.create(options.uri, facts, options.index_type) as store:
        lock = place.uri if place.is_local else None
        key = _fingerprint(options, run, reader)
        job = Job(key, model, options.data, options.metadata, store.address, lock)
        names = [part.name for part in parts]
        if store.finished(key, [_DELETION, *names]):
            logging.info("Finishing what %s holds in part.", place)
        if deleted and not store.finished(key, [_DELETION]):
            _delete(store, job, deleted)
        if parts:
            batch.run(
                parts,
                StoreImages(job),
                beam_options,
                done=lambda: len(store.finished(key, names)),
                total=len(parts),
                unit="parts",
            )
            _check(store, job, parts, reader, described)
        store.flush()
        store.forget(key, [_DELETION, *names])
        print(f"{place} holds {store.count():,} images in the collection {place.collection}")
    print(f'next: python -m serving.client search "a dog on grass" --store {place}')
    return str(place)


class StoreImages(beam.DoFn):
    """Projects the images of a shard and upserts them; loads the model once per worker."""

    def __init__(self, job: Job):
        self._job = job

    def setup(self):
        job = self._job
        run = Run.from_saved_model(job.model)
        self._scorer = Scorer(run.network.model)
        self._reader = index_parts.open_dataset(run, job.model, job.data)
        self._metadata = metadata.read(job.metadata) if job.metadata else {}
        self._store = MilvusStore.open(job.address)

    def process(self, part: StorePart):
        done = self._store.finished(self._job.key, [part.name])
        if part.name not in done or _ERROR in done[part.name]:
            try:
                report = self._write(part)
            except UserError as error:  # a runner would bury it in a traceback
                report = {_ERROR: str(error)}
            with self._job.writing():
                self._store.finish(self._job.key, part.name, report)

    def teardown(self):
        self._store.close()

    def _write(self, part: StorePart) -> dict:
        read, described, skipped = np.zeros(2, np.int64), 0, []
        for ids, features, texts in self._reader.batches([part.source]):
            decoded = features.any(axis=1)  # the features of an undecodable image are zero
            read += [len(ids), sum(map(len, texts))]
            names = [_text(image_id) for image_id in ids]
            skipped += [name for name, is_image in zip(names, decoded, strict=True) if not is_image]
            described += sum(name in self._metadata for name in names)
            images = [
                StoredImage(
                    names[row], projection, [*map(_text, texts[row])], self._facts(names[row])
                )
                for row, projection in zip(
                    np.flatnonzero(decoded), self._scorer.project(features[decoded]), strict=True
                )
            ]
            with self._job.writing():
                self._store.upsert(images)
        images, captions = read.tolist()
        report = {"images": images, "captions": captions, "described": described}
        return {**report, "skipped": len(skipped), "first": skipped[:1]}

    def _facts(self, name: str) -> dict[str, Any]:
        return self._metadata.get(name, {})


def _plan(reader: FeatureReader, splits: tuple[str, ...] | None) -> list[StorePart]:
    return [
        StorePart(os.path.basename(path), path, split)
        for split in splits or reader.info.splits
        for path in reader.shards(split)
    ]


def _delete(store: MilvusStore, job: Job, ids: list[str]) -> None:
    unknown = len(ids) - len(store.known(ids))
    if unknown:
        logging.warning("%d of %d images to delete are not there.", unknown, len(ids))
    with job.writing():
        store.delete(ids)
        store.finish(job.key, _DELETION, {})


def _check(
    store: MilvusStore, job: Job, parts: list[StorePart], reader: FeatureReader, described: int
) -> None:
    """Refuses to end where a part is missing, or a split is not complete."""
    reports = store.finished(job.key, [part.name for part in parts])
    for report in reports.values():
        if _ERROR in report:
            raise UserError(report[_ERROR])
    if missing := [part.source for part in parts if part.name not in reports]:
        raise UserError(
            f"{len(missing)} of {len(parts)} parts were not stored, the first is {missing[0]}: run "
            "the same command again to finish."
        )
    for split in dict.fromkeys(part.split for part in parts):
        own = [reports[part.name] for part in parts if part.split == split]
        counts = tuple(sum(report[name] for report in own) for name in ("images", "captions"))
        reader.info.check_counts(split, *counts)
    skipped = [report for report in reports.values() if report["skipped"]]
    if skipped:
        count, first = sum(report["skipped"] for report in skipped), skipped[0]["first"][0]
        told = "%d images have no features and are left out, the first is %s."
        logging.warning(told, count, first)
    used = sum(report["described"] for report in reports.values())
    if used < described:
        told = "%d of %d lines of the metadata are of images that the data does not hold."
        logging.warning(told, described - used, described)


def _fingerprint(options: Any, run: Run, reader: FeatureReader | None) -> str:
    """What tells the parts of this command from those of another one."""
    facts = [mrnn_tf.__version__, run.fingerprint, options.data, options.splits]
    facts += [reader.info.fingerprint] if reader else []
    digest = hashlib.sha256(json.dumps(facts).encode())
    for path in (options.metadata, options.delete):
        if path:
            with tf.io.gfile.GFile(path, "rb") as file:
                digest.update(hashlib.sha256(file.read()).digest())
    return digest.hexdigest()[:16]


def _read_ids(path: str) -> list[str]:
    return [*dict.fromkeys(map(_text, index_parts.read_lines(path)))]


def _text(content: bytes) -> str:
    return content.decode(errors="replace")

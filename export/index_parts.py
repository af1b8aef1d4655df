"""The parts of an index: a shard of records, or some lines of a file of sentences, each one a file.

A part is made by one call of `MakePart.process`, on any machine. Its file appears whole, so a part
whose file is there is done.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from mrnn_tf import files, schema, versions
from mrnn_tf.batch import Counter, beam
from mrnn_tf.data import records
from mrnn_tf.errors import UserError
from mrnn_tf.retrieval.index import NO_IMAGE, Entries, Texts
from mrnn_tf.retrieval.marginal import sample_rows
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.search import SentenceTable
from mrnn_tf.retrieval.sentences import pad
from mrnn_tf.run import Run
from mrnn_tf.split import FeatureReader

PART_ENDING, ERROR_ENDING = ".npz", ".error"
_SAMPLE = "sample"
_SENTENCES_IN_A_PART = 1000


@dataclasses.dataclass(frozen=True)
class Part:
    """A part to be made."""

    source: str  # a shard, or a file with a sentence a line
    output: str  # where the part goes
    split: str | None = None  # of the shard
    lines: tuple[int, int] | None = None  # of sentences: the first line and the one after the last


def open_dataset(run: Run, model: str, data: str) -> FeatureReader:
    """A reader of a dataset; the encoder of the SavedModel makes the features that it lacks."""
    stores = records.DatasetInfo.load(data).stores
    if "features" in stores and not run.config.train.finetune_encoder:
        return FeatureReader(run, data)
    loaded = versions.load(model)
    if schema.ENCODE_IMAGE not in loaded.signatures:
        raise UserError(
            f"{data} holds images only, but {model} has no encoder: export it with --encoder, or "
            "prepare the data with features."
        )

    def encode(images: tf.Tensor) -> tf.Tensor:
        return loaded.signatures[schema.ENCODE_IMAGE](image_bytes=images)[schema.FEATURES]

    return FeatureReader(run, data, encode)


def plan(
    reader: FeatureReader | None, splits: Sequence[str] | None, sentences: str | None, work: str
) -> list[Part]:
    """The parts of the splits of a dataset, by default of all, and of a file of sentences."""
    parts = []
    for split in (splits or reader.info.splits) if reader else ():
        for path in reader.shards(split):
            name = os.path.basename(path).removesuffix(".tfrecord")
            parts.append(Part(path, tf.io.gfile.join(work, name + PART_ENDING), split))
    count = len(read_lines(sentences)) if sentences else 0
    for first in range(0, count, _SENTENCES_IN_A_PART):
        output = tf.io.gfile.join(work, f"sentences-{first:09d}{PART_ENDING}")
        parts.append(Part(sentences, output, lines=(first, first + _SENTENCES_IN_A_PART)))
    return parts


def size(reader: FeatureReader | None, splits: Sequence[str] | None, sentences: str | None) -> int:
    """How many images and sentences the parts of `plan` have."""
    count = len(read_lines(sentences)) if sentences else 0
    for split in (splits or reader.info.splits) if reader else ():
        count += reader.info.splits[split].images + reader.info.splits[split].captions
    return count


def sample_images(scorer: Scorer, reader: FeatureReader, size: int, seed: int) -> np.ndarray:
    """The projections [n, M] of sampled training images that were decoded."""
    rows = sample_rows(reader.info.splits[schema.TRAIN].images, size, seed)
    batches = reader.batches(reader.shards(schema.TRAIN), rows)
    parts = [scorer.project(features[features.any(axis=1)]) for _, features, _ in batches]
    return np.concatenate(parts)


def write_sample(work: str, sample: Callable[[], np.ndarray]) -> str:
    """The path of the sample in the folder `work`, where workers read it."""
    path = tf.io.gfile.join(work, _SAMPLE)
    if not tf.io.gfile.exists(path):
        files.write_arrays(path, **{_SAMPLE: sample()})
    return path


def read_sample(path: str) -> np.ndarray:
    return files.read_arrays(path)[_SAMPLE]


class MakePart(beam.DoFn):
    """Makes the file of one part; loads the model and the sample once per worker."""

    def __init__(self, model: str, data: str | None, sample_path: str):
        self._model, self._data, self._sample_path = model, data, sample_path

    def setup(self):
        run = Run.from_saved_model(self._model)
        self._scorer, self._vocabulary = Scorer(run.network.model), run.vocabulary
        self._reader = open_dataset(run, self._model, self._data) if self._data else None
        self._sample = read_sample(self._sample_path)

    def process(self, part: Part):
        if not tf.io.gfile.exists(part.output):
            try:
                with Counter(part.output.removesuffix(PART_ENDING)) as counter:
                    files.write_arrays(part.output, **self._make(part, counter))
            except UserError as error:  # for `collect`: a runner would bury it in a traceback
                files.write_whole(part.output + ERROR_ENDING, str(error))

    def _make(self, part: Part, counter: Counter) -> dict[str, np.ndarray]:
        """Entries, ids of undecodable images, and how many images and captions were read."""
        ids, captions, owners, skipped, read = [], [], [], [], np.zeros(2, np.int64)
        images = [np.zeros((0, self._sample.shape[1]), np.float32)]
        if part.lines is not None:
            captions = read_lines(part.source)[slice(*part.lines)]
            owners = [NO_IMAGE] * len(captions)
        else:
            for batch_ids, features, texts in self._reader.batches([part.source]):
                counter.add(len(batch_ids))
                decoded = features.any(axis=1)  # the features of an undecodable image are zero
                images.append(self._scorer.project(features[decoded]))
                for image_id, own, is_image in zip(batch_ids, texts, decoded, strict=True):
                    read += [1, len(own)]
                    if is_image:
                        captions += own
                        owners += [len(ids)] * len(own)
                        ids.append(image_id)
                    else:
                        skipped.append(image_id)
        words = pad(self._vocabulary.ids(tf.constant(captions, tf.string)).to_list())
        table = SentenceTable.of(self._scorer, words, self._sample, counter.add)
        texts, owners = Texts.of(captions), np.array(owners, np.int32)
        entries = Entries(Texts.of(ids), np.concatenate(images), texts, *table, owners)
        skipped = {f"skipped.{name}": array for name, array in vars(Texts.of(skipped)).items()}
        return {**entries.arrays(), **skipped, "read": read}


def collect(parts: list[Part], reader: FeatureReader | None) -> tuple[list[Entries], list[bytes]]:
    """The entries of every part, and the ids of the images that have no features.

    Refuses to go on where a part is missing or a split is not complete.
    """
    missing = [part.output for part in parts if not tf.io.gfile.exists(part.output)]
    for path in missing:
        if tf.io.gfile.exists(path + ERROR_ENDING):
            with tf.io.gfile.GFile(path + ERROR_ENDING) as file:
                raise UserError(file.read())
    if missing:
        raise UserError(
            f"{len(missing)} of {len(parts)} parts were not made, the first is {missing[0]}: run "
            "the same command again to finish."
        )
    entries, skipped, counts = [], [], {part.split: np.zeros(2, np.int64) for part in parts}
    for part in parts:
        arrays = files.read_arrays(part.output)
        counts[part.split] += arrays.pop("read")
        skipped += Texts(arrays.pop("skipped.content"), arrays.pop("skipped.ends"))
        entries.append(Entries.from_arrays(arrays))
    counts.pop(None, None)  # that of sentences
    for split, (images, captions) in counts.items():
        reader.info.check_counts(split, images, captions)
    return entries, skipped


def read_lines(path: str) -> list[bytes]:
    """The lines of a text file that are not blank."""
    with tf.io.gfile.GFile(path, "rb") as file:
        return list(filter(None, map(bytes.strip, file.read().splitlines())))

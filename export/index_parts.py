"""The parts of an index: a shard of records, or some lines of a file of sentences, each one a file.

A part is made by one call of `Maker.make`, on any machine. Its file appears whole, so a part whose
file is there is done.
"""

import dataclasses
import io
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from mrnn_tf import files, schema
from mrnn_tf.batch import beam
from mrnn_tf.data import records
from mrnn_tf.errors import UserError
from mrnn_tf.retrieval import sentences
from mrnn_tf.retrieval.expansion import expand
from mrnn_tf.retrieval.index import NO_IMAGE, Entries, Texts
from mrnn_tf.retrieval.marginal import log_marginals, sample_rows
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.run import Run, check_encoder

PART_ENDING = ".npz"
_IMAGES_AT_ONCE = 64
_SENTENCES_AT_ONCE = 1024
_SKIPPED = "skipped"


@dataclasses.dataclass(frozen=True)
class Part:
    """A part to be made.

    Attributes:
        source: str. A shard, or a file with a sentence a line.
        output: str. Where the part goes.
        split: str. The split of the shard; `None` for sentences.
        lines: pair of the first line and the one after the last; `None` for a shard.
    """

    source: str
    output: str
    split: str | None = None
    lines: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True)
class Made:
    """A part that was made.

    Attributes:
        entries: Entries.
        skipped: ids of the images that have no features, and how many captions went with them.
    """

    entries: Entries
    skipped: list[bytes]
    lost_captions: int

    def save(self, path: str) -> None:
        content = io.BytesIO()
        names = {f"{_SKIPPED}.{k}": v for k, v in vars(Texts.of(self.skipped)).items()}
        np.savez(content, lost_captions=self.lost_captions, **names, **self.entries.arrays())
        files.write_whole(path, content.getvalue())

    @classmethod
    def load(cls, path: str) -> "Made":
        with tf.io.gfile.GFile(path, "rb") as file:
            arrays = dict(np.load(io.BytesIO(file.read())))
        skipped = Texts(arrays.pop(f"{_SKIPPED}.content"), arrays.pop(f"{_SKIPPED}.ends"))
        lost = int(arrays.pop("lost_captions"))
        return cls(Entries.from_arrays(arrays), list(skipped), lost)


class Images:
    """The images of a dataset with the features that a model takes.

    They are those of the records, or made by the SavedModel's encoder where the records hold images
    only or the model has an encoder of its own.

    Args:
        run: Run, of the model.
        model: str. The model's directory.
        data: str. The dataset's.
    """

    def __init__(self, run: Run, model: str, data: str):
        self.info, self._data = records.DatasetInfo.load(data), data
        self._encode: Callable | None = None
        has_own = run.config.train.finetune_encoder
        self._stores = "images" if has_own or "features" not in self.info.stores else "features"
        if has_own or self._stores == "features":
            check_encoder(run.config, data)
        if self._stores == "images":
            self._loaded = tf.saved_model.load(model)  # owns what the signature uses
            self._encode = self._loaded.signatures.get(schema.ENCODE_IMAGE)
            if self._encode is None:
                raise UserError(
                    f"{data} holds images only, but {model} has no encoder: export it with "
                    "--encoder, or prepare the data with features."
                )

    def shards(self, split: str) -> list[str]:
        return self.info.shards(self._data, split)

    def batches(
        self, paths: Sequence[str], rows: np.ndarray | None = None
    ) -> Iterator[tuple[list[bytes], np.ndarray, list[list[bytes]]]]:
        """Ids, features [B, D] and captions, of all images of some shards or of sorted `rows`."""
        first = 0
        with records.naming_corruption(self._data):
            for serialized in tf.data.TFRecordDataset(paths).batch(_IMAGES_AT_ONCE):
                if rows is not None:
                    begin, end = np.searchsorted(rows, [first, first + len(serialized)])
                    chosen = rows[begin:end] - first
                    first += len(serialized)
                    serialized = tf.gather(serialized, chosen)
                    if not len(chosen):
                        continue
                parsed = records.parse(serialized, self.info, [self._stores])
                yield (
                    parsed[schema.IMAGE_ID].numpy().tolist(),
                    self._features(parsed),
                    parsed[schema.CAPTION_TEXT].to_list(),
                )

    def _features(self, parsed: dict[str, tf.Tensor]) -> np.ndarray:
        if self._encode is None:
            return parsed[schema.IMAGE_FEATURES].numpy()
        return self._encode(image_bytes=parsed[schema.IMAGE_ENCODED])[schema.FEATURES].numpy()


def sample(scorer: Scorer, images: Images, size: int, seed: int) -> np.ndarray:
    """The projections [n, M] of sampled training images."""
    rows = sample_rows(images.info.splits[schema.TRAIN].images, size, seed)
    found = [
        scorer.project(features[is_there(features)])
        for _, features, _ in images.batches(images.shards(schema.TRAIN), rows)
    ]
    return np.concatenate(found)


class Maker:
    """Makes the parts of an index.

    Args:
        model: str. The directory of the SavedModel.
        data: str. The dataset; `None` where there are sentences only.
        sample: float32 [n, M], the sampled images.
    """

    def __init__(self, model: str, data: str | None, sample: np.ndarray):
        run = Run.from_saved_model(model)
        self._model, self._vocabulary = run.network.model, run.vocabulary
        self._scorer = Scorer(self._model)
        self._images = Images(run, model, data) if data else None
        self._sample, self._mean = sample, sample.mean(axis=0)

    def make(self, part: Part) -> Made:
        """The entries of a part."""
        if part.lines is None:
            return self._from_shard(part.source)
        texts = read_lines(part.source)[slice(*part.lines)]
        return self._made([], np.zeros((0, self._model.multimodal_size), np.float32), texts, [])

    def _from_shard(self, path: str) -> Made:
        ids, projections, captions, owners, skipped, lost = [], [], [], [], [], 0
        projections.append(np.zeros((0, self._model.multimodal_size), np.float32))
        for some, features, texts in self._images.batches([path]):
            there = is_there(features)
            projections.append(self._scorer.project(features[there]))
            for image_id, of_image, kept in zip(some, texts, there, strict=True):
                if kept:
                    captions += of_image
                    owners += [len(ids)] * len(of_image)
                    ids.append(image_id)
                else:
                    skipped.append(image_id)
                    lost += len(of_image)
        return self._made(ids, np.concatenate(projections), captions, owners, skipped, lost)

    def _made(self, ids, images, captions, owners, skipped=(), lost=0) -> Made:
        words = sentences.pad(self._vocabulary.ids(tf.constant(captions, tf.string)).to_list())
        vectors = np.zeros((len(words), images.shape[1]), np.float32)
        mean_log_probs, marginals = np.zeros(len(words), np.float32), np.zeros(len(words))
        for rows in sentences.blocks(words, _SENTENCES_AT_ONCE):
            read = sentences.read(self._model, words[rows])
            expansion = expand(self._scorer, read, self._mean)
            vectors[rows] = expansion.vectors
            mean_log_probs[rows] = expansion.log_probs.sum(axis=1)
            marginals[rows] = log_marginals(self._scorer, read, expansion, self._sample)
        owners = owners or [NO_IMAGE] * len(captions)
        return Made(
            Entries(
                ids=Texts.of(ids),
                images=images,
                captions=Texts.of(captions),
                words=words,
                vectors=vectors,
                mean_log_probs=mean_log_probs,
                log_marginals=marginals,
                owners=np.array(owners, np.int32),
            ),
            list(skipped),
            lost,
        )


class MakePart(beam.DoFn):
    """Makes one part; loads the model once per worker."""

    def __init__(self, model: str, data: str | None, sample: np.ndarray):
        self._arguments = model, data, sample

    def setup(self):
        self._maker = Maker(*self._arguments)

    def process(self, part: Part):
        if not tf.io.gfile.exists(part.output):
            self._maker.make(part).save(part.output)


def collect(parts: Sequence[Part], info: records.DatasetInfo | None) -> list[Made]:
    """Loads every part; refuses to go on where one is missing or a split is not complete."""
    missing = [part.output for part in parts if not tf.io.gfile.exists(part.output)]
    if missing:
        raise UserError(
            f"{len(missing)} of {len(parts)} parts were not made, the first is {missing[0]}: run "
            "the same command again to finish."
        )
    made = [Made.load(part.output) for part in parts]
    for split in dict.fromkeys(part.split for part in parts if part.split):
        some = [each for part, each in zip(parts, made, strict=True) if part.split == split]
        images = sum(len(each.entries.ids) + len(each.skipped) for each in some)
        captions = sum(len(each.entries.captions) + each.lost_captions for each in some)
        wanted = info.splits[split]
        if (images, captions) != (wanted.images, wanted.captions):
            raise UserError(
                f"The parts of the split {split!r} hold {images} images and {captions} captions, "
                f"but {schema.DATASET_FILE} says {wanted.images} and {wanted.captions}: prepare "
                "the data again."
            )
    return made


def is_there(features: np.ndarray) -> np.ndarray:
    """Which images [B] have features; those of an undecodable image are zeros."""
    return np.isfinite(features).all(axis=1) & (features != 0).any(axis=1)


def read_lines(path: str) -> list[bytes]:
    """The lines of a text file that are not blank."""
    with tf.io.gfile.GFile(path, "rb") as file:
        lines = [line.strip() for line in file.read().splitlines()]
    return [line for line in lines if line]

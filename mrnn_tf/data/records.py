"""TFRecord shards of `tf.train.Example`, one per image, and the `dataset.json` beside them."""

# ruff: noqa: RUF009 (`field` makes fields, not values)

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from mrnn_tf import checksums, schema
from mrnn_tf.checksums import Checksums
from mrnn_tf.config import REQUIRED, Config, check_description, field
from mrnn_tf.errors import UserError

_NOT_FINITE = "holds NaN or infinity in the features of "
_STORES = (schema.FEATURES, schema.IMAGES, schema.PICTURES)
# Of a record that is not of the dataset; TensorFlow fails to decode an error that quotes its bytes.
UNPARSABLE = (tf.errors.InvalidArgumentError, UnicodeDecodeError)


@dataclasses.dataclass(frozen=True)
class SplitCounts(Config):
    """What one split holds."""

    images: int = field(REQUIRED, "images", at_least=0)
    captions: int = field(REQUIRED, "captions of all images", at_least=0)
    shards: int = field(REQUIRED, "files", at_least=0, below=1_000_000)


@dataclasses.dataclass(frozen=True)
class DatasetInfo(Config):
    """The contents of `dataset.json`: written last, so a dataset without it is not whole."""

    dataset: str = field(REQUIRED, "name of the format")
    splits: dict = field(REQUIRED, "`SplitCounts` by the name of the split")
    stores: tuple[str, ...] = field(REQUIRED, "what is stored of an image", choices=_STORES)
    # `identity` is compared, `parts` are what joined features are made of; the rest is for people.
    encoder: dict | None = field(REQUIRED, "what made the features")
    feature_size: int | None = field(REQUIRED, "values of an image", at_least=1)
    tokenizer: dict = field(REQUIRED, "settings of the tokeniser")
    vocabulary_size: int | None = field(REQUIRED, "words, with the reserved ones", at_least=1)
    problems: dict = field(REQUIRED, "how many of each kind were found")
    fingerprint: str = field(REQUIRED, "tells the dataset from others")
    tool_version: str = field(REQUIRED, "version of the package that wrote it")
    checksums: Checksums = dataclasses.field(default=Checksums("", ""), compare=False, repr=False)

    def __post_init__(self):
        super().__post_init__()
        if unknown := [split for split in self.splits if split not in schema.SPLITS]:
            raise UserError(
                f"`DatasetInfo.splits` are of {', '.join(schema.SPLITS)}; got {unknown[0]}."
            )
        if self.encoder:
            check_description("DatasetInfo.encoder", self.encoder, self.feature_size)

    @property
    def identity(self) -> str | None:
        """The identity of the encoder that made the features."""
        return self.encoder["identity"] if self.encoder else None

    def save(self, directory: str) -> None:
        """Writes the marker, with checksums of the shards and the vocabulary beside it."""
        fields, names = dataclasses.asdict(self), [schema.VOCABULARY_FILE]
        del fields["checksums"]
        for split, counts in self.splits.items():
            names += map(os.path.basename, shard_paths(directory, split, counts.shards))
        present = set(tf.io.gfile.listdir(directory)) & set(names)
        path = tf.io.gfile.join(directory, schema.DATASET_FILE)
        checksums.write(path, fields, directory, present)

    @classmethod
    def load(cls, directory: str) -> "DatasetInfo":
        path = tf.io.gfile.join(directory, schema.DATASET_FILE)
        if not tf.io.gfile.exists(path):
            raise FileNotFoundError(
                f"{directory} holds no {schema.DATASET_FILE}: it is not a whole dataset; "
                "make or finish it with `python -m trainer.prepare`."
            )
        remedy = f"delete {directory} and make it again with `python -m trainer.prepare`"
        wanted = "the description of a dataset is wanted"
        fields, sums = checksums.read(path, wanted, directory, remedy)
        try:
            splits = {
                name: SplitCounts.from_dict(counts) for name, counts in fields["splits"].items()
            }
            fields |= {"splits": splits, "stores": tuple(fields["stores"])}
            return cls.from_dict({**fields, "checksums": sums})
        except (AttributeError, KeyError, TypeError, UserError) as error:
            raise UserError(f"{path} is not a dataset.json of mrnn_tf: {error}.") from error

    def shards(self, directory: str, split: str) -> list[str]:
        """Paths of a split's shards, which have the sizes that they were written with."""
        if split not in self.splits:
            raise UserError(
                f"{directory} has no split {split!r}; it has {', '.join(self.splits) or 'none'}."
            )
        paths = shard_paths(directory, split, self.splits[split].shards)
        self.checksums.check_sizes(*map(os.path.basename, paths))
        return paths

    def check_counts(self, split: str, images: int, captions: int) -> None:
        """Raises `UserError` where a split was read that is not complete."""
        wanted = self.splits[split]
        if (images, captions) != (wanted.images, wanted.captions):
            raise UserError(
                f"The parts of the split {split!r} hold {images} images and {captions} captions, "
                f"but {schema.DATASET_FILE} says {wanted.images} and {wanted.captions}: prepare "
                "the data again."
            )


def shard_paths(directory: str, split: str, count: int) -> list[str]:
    names = (schema.SHARD_PATTERN.format(split=split, index=i, count=count) for i in range(count))
    return [tf.io.gfile.join(directory, name) for name in names]


def serialize(
    image_id: str,
    captions: Sequence[str] = (),
    features: np.ndarray | None = None,
    encoded: bytes | None = None,
    picture: bytes | None = None,
) -> bytes:
    """One image as a serialized `tf.train.Example`."""
    feature = {
        schema.IMAGE_ID: _bytes([image_id.encode()]),
        schema.CAPTION_TEXT: _bytes([caption.encode() for caption in captions]),
    }
    if features is not None:
        values = tf.train.FloatList(value=np.asarray(features, np.float32).tolist())
        feature[schema.IMAGE_FEATURES] = tf.train.Feature(float_list=values)
    if encoded is not None:
        feature[schema.IMAGE_ENCODED] = _bytes([encoded])
    if picture is not None:
        feature[schema.IMAGE_PICTURE] = _bytes([picture])
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    return example.SerializeToString(deterministic=True)


def parse(serialized: tf.Tensor, info: DatasetInfo, stores: Sequence[str]) -> dict[str, tf.Tensor]:
    """A dataset's records, string [B] -> `ids`, ragged `captions` and each of the `stores`."""
    features = tf.io.FixedLenFeature([info.feature_size], tf.float32)
    forms = {
        schema.IDS: (schema.IMAGE_ID, tf.io.FixedLenFeature([], tf.string)),
        schema.CAPTIONS: (schema.CAPTION_TEXT, tf.io.RaggedFeature(tf.string)),
        schema.FEATURES: (schema.IMAGE_FEATURES, features),
        schema.IMAGES: (schema.IMAGE_ENCODED, tf.io.FixedLenFeature([], tf.string)),
        schema.PICTURES: (schema.IMAGE_PICTURE, tf.io.FixedLenFeature([], tf.string, b"")),
    }
    wanted = {name: forms[name] for name in (schema.IDS, schema.CAPTIONS, *stores)}
    parsed = tf.io.parse_example(serialized, dict(wanted.values()))
    parsed = {name: parsed[key] for name, (key, _) in wanted.items()}
    if schema.FEATURES in parsed:
        is_finite = tf.reduce_all(tf.math.is_finite(parsed[schema.FEATURES]), axis=1)
        bad = tf.concat([tf.boolean_mask(parsed[schema.IDS], ~is_finite), [""]], axis=0)
        named = tf.strings.join([_NOT_FINITE, bad[0]])
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(is_finite), [named])]):
            parsed[schema.FEATURES] = tf.identity(parsed[schema.FEATURES])
    return parsed


def parse_image(serialized: tf.Tensor, size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Features [size], or zeros, and the encoded image, or "", of one record, as others send them.

    Raises:
        tf.errors.InvalidArgumentError: where it is no record, or has features of another size.
    """
    forms = {
        schema.IMAGE_FEATURES: tf.io.FixedLenFeature([size], tf.float32, [0.0] * size),
        schema.IMAGE_ENCODED: tf.io.FixedLenFeature([], tf.string, b""),
    }
    parsed = tf.io.parse_single_example(serialized, forms)
    return parsed[schema.IMAGE_FEATURES], parsed[schema.IMAGE_ENCODED]


def count_records(path: str, info: DatasetInfo | None = None) -> int:
    """Reads a shard to its end; a corrupt record is named with its index.

    With `info` every record is parsed too, as the dataset describes it.
    """
    count = 0
    try:
        for record in tf.data.TFRecordDataset(path):
            if info:
                parse(record[tf.newaxis], info, info.stores)
            count += 1
    except UNPARSABLE as error:
        raise UserError(
            f"{path} is corrupt at record {count}: it is no image as {schema.DATASET_FILE} "
            "describes it. Delete the dataset's folder and prepare it again."
        ) from error
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError) as error:
        raise UserError(
            f"{path} is corrupt at record {count}: {error.message.split(' [')[0]}. "
            "Delete the dataset's folder and prepare it again."
        ) from None
    except tf.errors.NotFoundError:
        raise FileNotFoundError(f"The shard {path} is missing.") from None
    return count


def check_finite(source: str, ids: Sequence[bytes | str], features: np.ndarray) -> None:
    """Refuses by name an image whose features [B, D] of some `source` are not finite."""
    bad = np.flatnonzero(~np.isfinite(features).all(axis=1))
    if len(bad):
        raise UserError(
            f"{source} {_NOT_FINITE}{tf.compat.as_text(ids[bad[0]])}: prepare it again."
        )


@contextlib.contextmanager
def naming_corruption(directory: str) -> Iterator[None]:
    """Where reading a dataset fails inside, says which shard is corrupt, and at which record.

    Names the image whose features are not finite.
    """
    try:
        yield
    except (tf.errors.DataLossError, *UNPARSABLE) as error:
        _, found, name = getattr(error, "message", "").partition(_NOT_FINITE)
        if found:
            name = name.partition("]")[0]
            raise UserError(f"{directory} {_NOT_FINITE}{name}: prepare it again.") from None
        info = DatasetInfo.load(directory)
        for split in info.splits:
            for path in shard_paths(directory, split, info.splits[split].shards):
                count_records(path, info)
        raise


def _bytes(values: Sequence[bytes]) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))

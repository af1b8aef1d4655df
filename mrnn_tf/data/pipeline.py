"""From shards to batches by tf.data.

Captions become training examples `{features [B, D], word_ids [B, T], target_ids [B, T]}`, where
`word_ids` begin with <s>, `target_ids` end with </s>, and both are padded on the right. The
features stand once per caption, never per word. With images instead of features, `images` string
[B] takes their place.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.data import records
from mrnn_tf.errors import UserError
from mrnn_tf.text import Vocabulary
from mrnn_tf.vision import images
from mrnn_tf.vision.encoders import Encoder

# Two lengths share a bucket, so padding is a few percent of the words; the last ones are rare.
BUCKET_BOUNDARIES = (*range(5, 31, 2), 35, 40, 50, 70, 100)
_RECORDS_AT_ONCE = 64


@dataclasses.dataclass(frozen=True)
class Source:
    """A split of a dataset as a run reads it: with `features`, or `images` to compute them of."""

    directory: str
    split: str
    vocabulary: Vocabulary
    stores: str = schema.FEATURES

    def __post_init__(self):
        if self.stores not in self.info.stores:
            raise UserError(
                f"{self.directory} holds {' and '.join(self.info.stores)} but no {self.stores}: "
                f"prepare it with --store {self.stores} or both."
            )

    @property
    def info(self) -> records.DatasetInfo:
        return records.DatasetInfo.load(self.directory)


def training_batches(
    source: Source, batch_size: int, seed: int, max_words: int = 30, **order
) -> tf.data.Dataset:
    """Endless shuffled batches of exactly `batch_size` captions, of similar length.

    `order` may give `shuffle_buffer`, `workers`, `worker` and `deterministic`: see `_shuffled`.
    """
    read = functools.partial(_captions, source, max_words=max_words)
    batched = functools.partial(_bucketed, batch_size=batch_size, drop_remainder=True)
    return _shuffled(source, batch_size, read, batched, seed, **order)


def training_images(
    source: Source, batch_size: int, seed: int, shuffle_buffer: int = 1024, **order
) -> tf.data.Dataset:
    """Endless shuffled batches of images with captions: `{ids, features or images, captions}`.

    The raw captions [B, C] are padded with the empty text. `order` as for `training_batches`.
    """
    info = source.info

    def dense(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        image = records.parse(serialized, info, [source.stores])
        return {**image, schema.CAPTIONS: image[schema.CAPTIONS].to_tensor()}

    def batched(images: tf.data.Dataset) -> tf.data.Dataset:
        return images.batch(batch_size, drop_remainder=True).map(dense, tf.data.AUTOTUNE)

    return _shuffled(source, batch_size, _records, batched, seed, shuffle_buffer, **order)


def evaluation_batches(source: Source, batch_size: int) -> tf.data.Dataset:
    """Every caption of a split once, whole, in an order that never changes."""
    dataset = _captions(source, tf.constant(_captioned_shards(source)), deterministic=True)
    batches = _bucketed(dataset, batch_size, drop_remainder=False)
    return _rows_of_worker(batches, batch_size, workers=1, worker=0, deterministic=True)


def image_batches(source: Source, batch_size: int) -> tf.data.Dataset:
    """Every image of a split once: `{ids, features or images, captions (ragged, raw)}`."""
    paths = source.info.shards(source.directory, source.split)
    dataset = tf.data.TFRecordDataset(paths).batch(batch_size)
    return parsed(dataset, source.info, [source.stores]).prefetch(2)


def parsed(
    dataset: tf.data.Dataset, info: records.DatasetInfo, stores: Sequence[str] = ()
) -> tf.data.Dataset:
    """What batches of serialized records hold."""
    return dataset.map(lambda batch: records.parse(batch, info, stores), tf.data.AUTOTUNE)


def captions(directory: str, split: str) -> Iterator[list[str]]:
    """The raw captions of every image of a split."""
    return (texts for _, texts in captions_by_id(directory, split))


def captions_by_id(directory: str, split: str) -> Iterator[tuple[str, list[str]]]:
    """The id and the raw captions of every image of a split."""
    info = records.DatasetInfo.load(directory)
    dataset = tf.data.TFRecordDataset(info.shards(directory, split)).batch(_RECORDS_AT_ONCE)
    for batch in parsed(dataset, info):
        captions = batch[schema.CAPTIONS].to_list()
        for image_id, texts in zip(batch[schema.IDS].numpy(), captions, strict=True):
            yield (
                image_id.decode(errors="replace"),
                [text.decode(errors="replace") for text in texts],
            )


def pictures(directory: str, split: str) -> Iterator[tuple[str, bytes]]:
    """The id and the picture, small or as stored, of every image of a split that has one."""
    info = records.DatasetInfo.load(directory)
    kept = [store for store in (schema.PICTURES, schema.IMAGES) if store in info.stores][:1]
    dataset = tf.data.TFRecordDataset(info.shards(directory, split)).batch(_RECORDS_AT_ONCE)
    for batch in parsed(dataset, info, kept) if kept else ():
        for image_id, encoded in zip(batch[schema.IDS], batch[kept[0]], strict=True):
            if encoded != b"":
                yield image_id.numpy().decode(errors="replace"), encoded.numpy()


def count_long(source: Source, max_words: int) -> int:
    """How many captions training leaves out because they have more than `max_words` words."""
    dataset = tf.data.TFRecordDataset(_captioned_shards(source)).batch(_RECORDS_AT_ONCE)

    def count(total: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        lengths = source.vocabulary.ids(batch[schema.CAPTIONS].flat_values).row_lengths()
        return total + tf.math.count_nonzero(lengths > max_words)

    return int(parsed(dataset, source.info).reduce(tf.constant(0, tf.int64), count).numpy())


def _captioned_shards(source: Source) -> list[str]:
    paths = source.info.shards(source.directory, source.split)
    if source.info.splits[source.split].captions == 0:
        raise UserError(f"The split {source.split!r} of {source.directory} holds no captions.")
    return paths


def _shuffled(
    source: Source,
    batch_size: int,
    read: Callable[..., tf.data.Dataset],
    batched: Callable[[tf.data.Dataset], tf.data.Dataset],
    seed: int,
    shuffle_buffer: int = 4096,
    workers: int = 1,
    worker: int = 0,
    deterministic: bool = False,
) -> tf.data.Dataset:
    """What `read` makes of the paths of the shards, shuffled anew in every epoch, and `batched`.

    Every worker forms the same batches and keeps its own rows, `worker::workers`, so that training
    sees the same global batch whatever the number of workers.
    """
    deterministic = deterministic or workers > 1  # or the workers' batches would differ
    paths = tf.constant(_captioned_shards(source))

    def epoch(number: tf.Tensor) -> tf.data.Dataset:
        # The orders are functions of seed and epoch: a reshuffling op below `repeat` would not
        # resume from a checkpoint with the order it had.
        seeds = tf.stack([tf.constant(seed, tf.int64), number])
        order = tf.argsort(tf.random.stateless_uniform(tf.shape(paths), seeds))
        dataset = read(tf.gather(paths, order), deterministic)
        chosen = tf.random.stateless_uniform([], seeds, None, None, tf.int64)
        return dataset.shuffle(shuffle_buffer, seed=chosen, reshuffle_each_iteration=False)

    batches = batched(tf.data.Dataset.counter().flat_map(epoch))
    return _rows_of_worker(batches, batch_size, workers, worker, deterministic)


def _captions(
    source: Source, paths: tf.Tensor, deterministic: bool, max_words: int | None = None
) -> tf.data.Dataset:
    """One element a caption: its ids from <s> to </s>, its length and bucket, and its image."""
    info = source.info

    def expand(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        image = records.parse(serialized, info, [source.stores])
        captions = image[schema.CAPTIONS]
        row = captions.value_rowids()
        words = source.vocabulary.ids(captions.flat_values)
        ones = tf.ones_like(row, tf.int32)[:, tf.newaxis]
        ids = tf.concat([ones * schema.START_ID, words, ones * schema.END_ID], axis=1)
        length = tf.cast(words.row_lengths(), tf.int32) + 1  # the end token is a word
        if max_words is not None:
            short = tf.where(length <= max_words + 1)[:, 0]
            row, ids, length = (tf.gather(values, short) for values in (row, ids, length))
        return {
            source.stores: tf.gather(image[source.stores], row),
            schema.IDS: ids.to_tensor(schema.PAD_ID),
            "length": length,
            "bucket": tf.searchsorted(BUCKET_BOUNDARIES, length, "right", tf.int64),
        }

    dataset = _records(paths, deterministic).batch(_RECORDS_AT_ONCE)
    return dataset.map(expand, tf.data.AUTOTUNE).unbatch()


def _records(paths: tf.Tensor, deterministic: bool) -> tf.data.Dataset:
    parallel = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": deterministic}
    dataset = tf.data.Dataset.from_tensor_slices(paths)
    return dataset.interleave(tf.data.TFRecordDataset, cycle_length=8, **parallel)


def _bucketed(dataset: tf.data.Dataset, batch_size: int, drop_remainder: bool) -> tf.data.Dataset:
    """Batches of captions of similar length, as inputs and targets."""

    def inputs_and_targets(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        image = {k: v for k, v in batch.items() if k in (schema.FEATURES, schema.IMAGES)}
        ids = batch[schema.IDS][:, : tf.reduce_max(batch["length"]) + 1]
        return {**image, schema.WORD_IDS: ids[:, :-1], schema.TARGET_IDS: ids[:, 1:]}

    return dataset.group_by_window(
        lambda caption: caption["bucket"],
        lambda _, bucket: bucket.padded_batch(batch_size, drop_remainder=drop_remainder),
        window_size=batch_size,
    ).map(inputs_and_targets)


def _rows_of_worker(dataset, batch_size, workers, worker, deterministic) -> tf.data.Dataset:
    if batch_size % workers:
        raise UserError(f"`batch_size` {batch_size} must be a multiple of {workers} workers.")
    if workers > 1:
        dataset = dataset.map(lambda batch: {k: v[worker::workers] for k, v in batch.items()})
    options = tf.data.Options()
    options.deterministic = deterministic
    # The shuffles inside `flat_map` count as external state, but their seeds are given.
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(options)


def with_pixels(dataset: tf.data.Dataset, encoder: Encoder | None) -> tf.data.Dataset:
    """Decodes `images` to the encoder's `pixels`; without an encoder nothing changes."""
    if encoder is None:
        return dataset
    shape = [encoder.crops, encoder.input_size, encoder.input_size, 3]

    def decode(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        pixels = tf.map_fn(
            lambda encoded: encoder.prepare(images.decode(encoded)),
            batch.pop(schema.IMAGES),
            fn_output_signature=tf.TensorSpec(shape, tf.float32),
        )
        return {**batch, schema.PIXELS: pixels}

    return dataset.map(decode, tf.data.AUTOTUNE)

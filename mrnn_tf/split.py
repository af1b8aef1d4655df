"""The images of a dataset, read once: ids, features, captions and, where asked for, pictures."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.data import pipeline, records
from mrnn_tf.progress import Progress
from mrnn_tf.run import Run, check_encoder

_BATCH_SIZE = 64


class FeatureReader:
    """Reads shards with the features that a run takes: the one reader of images.

    Features of another encoder are refused. Where neither the records nor the run's own encoder
    give them, `encode` does, from encoded images string [B] to features [B, D].
    """

    def __init__(self, run: Run, data: str, encode: Callable[[tf.Tensor], tf.Tensor] | None = None):
        self.info, self._data = records.DatasetInfo.load(data), data
        finetuned = run.config.train.finetune_encoder
        if encode is None or finetuned:
            check_encoder(run.config, data)
        self._stores = schema.IMAGES if encode or finetuned else schema.FEATURES
        self._parse = tf.function(  # traced once for all shards
            lambda serialized: records.parse(serialized, self.info, [self._stores]),
            [tf.TensorSpec([None], tf.string)],
            autograph=False,
        )
        self._encoder, self._features = run.network.encoder, run.network.features
        if encode:
            self._encoder, self._features = None, lambda batch: encode(batch[schema.IMAGES])

    def shards(self, split: str) -> list[str]:
        return self.info.shards(self._data, split)

    def batches(
        self, paths: Sequence[str], rows: np.ndarray | None = None
    ) -> Iterator[tuple[list[bytes], np.ndarray, list[list[bytes]]]]:
        """Ids, features [B, D] and captions of the images of some shards, or of some `rows`.

        Refuses by name an image whose features are not finite.
        """
        serialized = tf.data.TFRecordDataset(list(paths))
        if rows is not None:
            wanted = np.isin(np.arange(max(rows, default=-1) + 1), rows)
            numbered = tf.data.Dataset.zip(serialized, tf.data.Dataset.from_tensor_slices(wanted))
            serialized = numbered.filter(lambda _, is_wanted: is_wanted).map(lambda one, _: one)
        serialized = serialized.batch(_BATCH_SIZE)
        if self._encoder:
            dataset = serialized.map(self._parse, tf.data.AUTOTUNE)
            parsed = pipeline.with_pixels(dataset, self._encoder).prefetch(2)
        else:  # little work: less than that of a longer pipeline, which is optimised for each shard
            parsed = map(self._parse, serialized)
        with records.naming_corruption(self._data):
            for batch in parsed:
                ids = batch[schema.IDS].numpy().tolist()
                features = self._features(batch).numpy()
                records.check_finite(self._data, ids, features)
                yield ids, features, batch[schema.CAPTIONS].to_list()


@dataclasses.dataclass(frozen=True)
class Split:
    """The images of a split with all that an evaluation needs of them."""

    source: pipeline.Source  # where they were read
    ids: tuple[str, ...]  # the names of the images
    features: np.ndarray  # float32 [I, D], all finite
    captions: tuple[tuple[str, ...], ...]  # the reference captions; an image may have none

    @classmethod
    def read(cls, run: Run, data: str, name: str, limit: int = 0) -> "Split":
        """Reads a split of a dataset, or its first `limit` images, as `FeatureReader` does."""
        source, reader = run.source(data, name), FeatureReader(run, data)
        paths, images = reader.shards(name), reader.info.splits[name].images
        count = min(limit or images, images)
        ids, captions, features = [], [], [np.zeros((0, run.config.feature_size), np.float32)]
        batches = reader.batches(paths, np.arange(count) if limit else None)
        bar = Progress(batches, name, total=-(-count // _BATCH_SIZE), unit=" batches")
        for batch_ids, batch_features, texts in bar:
            ids += [image_id.decode(errors="replace") for image_id in batch_ids]
            features.append(batch_features)
            captions += [tuple(t.decode(errors="replace") for t in own) for own in texts]
        return cls(source, tuple(ids), np.concatenate(features), tuple(captions))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def has_captions(self) -> bool:
        return any(map(any, self.captions))

    def pictures(self, wanted: set[str]) -> dict[str, bytes]:
        """The encoded pictures of the images with some ids, as far as the records hold them."""
        pictures = pipeline.pictures(self.source.directory, self.source.split) if wanted else ()
        return {name: encoded for name, encoded in pictures if name in wanted}

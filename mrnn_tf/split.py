"""The images of a split, read once: ids, features, captions and, where asked for, pictures."""

import dataclasses

import numpy as np
from tqdm import tqdm

from mrnn_tf.data import pipeline, records
from mrnn_tf.errors import UserError
from mrnn_tf.run import Run

_BATCH_SIZE = 64


@dataclasses.dataclass(frozen=True)
class Split:
    """The images of a split with all that an evaluation needs of them.

    Attributes:
        source: pipeline.Source. Where they were read.
        ids: the names of the images.
        features: float32 [I, D], all finite.
        captions: the reference captions of every image; an image may have none.
    """

    source: pipeline.Source
    ids: tuple[str, ...]
    features: np.ndarray
    captions: tuple[tuple[str, ...], ...]

    @classmethod
    def read(cls, run: Run, data: str, name: str, limit: int = 0) -> "Split":
        """Reads a split of a dataset, or its first `limit` images.

        A fine-tuned encoder computes the features, once. Refuses features of another encoder, and
        by name an image whose features are not finite.
        """
        source = run.source(data, name)
        total = source.info.splits[name].images if name in source.info.splits else 0
        ids, features, captions = [], [], []
        with records.naming_corruption(data):
            batches = run.network.images(source, _BATCH_SIZE)
            for batch in tqdm(
                batches, name, -(-total // _BATCH_SIZE), unit=" batches", disable=None
            ):
                ids += [image_id.decode() for image_id in batch["ids"].numpy()]
                features.append(run.network.features(batch).numpy())
                captions += [
                    tuple(text.decode(errors="replace") for text in some)
                    for some in batch["captions"].to_list()
                ]
                if limit and len(ids) >= limit:
                    break
        count = min(limit, len(ids)) if limit else len(ids)
        features = (
            np.concatenate(features)[:count] if ids else np.zeros((0, source.info.feature_size))
        )
        check_finite(features, ids, f"The split {name!r} of {data}")
        return cls(source, tuple(ids[:count]), features, tuple(captions[:count]))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def has_captions(self) -> bool:
        return any(map(any, self.captions))

    def pictures(self, wanted: set[str]) -> dict[str, bytes]:
        """The encoded images with some ids; none where the records hold no images."""
        return pipeline.pictures(self.source, wanted)


def check_finite(features: np.ndarray, ids: list[str], place: str) -> None:
    """Refuses features [I, D] that hold NaN or infinity, naming the first image."""
    bad = np.flatnonzero(~np.isfinite(features).all(axis=1))
    if len(bad):
        raise UserError(
            f"{place} holds NaN or infinity in the features of {ids[bad[0]]}"
            f"{f' and {len(bad) - 1} more images' if len(bad) > 1 else ''}: prepare it again."
        )

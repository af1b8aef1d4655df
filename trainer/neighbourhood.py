"""The training images of a dataset, among which the neighbours of other images are found."""

import dataclasses

import numpy as np
import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.consensus import neighbours
from mrnn_tf.consensus import reranking as consensus
from mrnn_tf.consensus.ngrams import Corpus
from mrnn_tf.data import pipeline, records
from mrnn_tf.errors import UserError
from mrnn_tf.metrics.coco import ImageId
from mrnn_tf.run import Run

# Whitened features are of the refined ones, where the model refines features.
FEATURES = ("whitened", "refined", "original")
_BATCH_SIZE = 256


@dataclasses.dataclass(frozen=True)
class Near:
    """The neighbours int [k] of an image, nearest first, and what each counts, float [k]."""

    images: np.ndarray
    weights: np.ndarray


class Neighbourhood:
    """The training images of `directory` as neighbours.

    The neighbours count alike, as in the paper, but for whitened features, where a nearer one
    counts more.

    Args:
        run: `Run`. Its encoder computes the features, its model refines them.
        directory: str. Records with a training split that has captions.
        features: str. One of `FEATURES`: by which of them images are near.
    """

    def __init__(self, run: Run, directory: str, features: str = FEATURES[0]):
        if features not in FEATURES:
            raise UserError(f"`features` must be one of {', '.join(FEATURES)}, not {features!r}.")
        source = run.source(directory, schema.TRAIN)
        self._run = run
        network = run.network
        refine = features == "refined" or (
            features == "whitened" and "multimodal" in network.model.wiring.image_to
        )

        @tf.function(reduce_retracing=True)
        def compute(image):
            found = network.features(image)
            return network.model.refined(found) if refine else found

        self._compute = compute
        with records.naming_corruption(directory):
            ids, self._features, captions = self._read(source)
        if not any(captions):
            raise UserError(f"The training images of {directory} have no captions.")
        self._places = {image_id: place for place, image_id in enumerate(ids)}
        self.corpus = Corpus.of(captions)
        self._whitening = None
        if features == "whitened":
            self._whitening = neighbours.Whitening.of(self._features)
            self._features = self._whitening(self._features)

    def nearest(self, source: pipeline.Source, k: int) -> dict[ImageId, Near]:
        """The k nearest training images of every image of a split, itself left out."""
        with records.naming_corruption(source.directory):
            ids, features, _ = self._read(source)
        if self._whitening is not None:
            features = self._whitening(features)
        found, distances = neighbours.nearest(features, self._features, k + 1)
        near = {}
        for image_id, images, far in zip(ids, found, distances, strict=True):
            others = np.flatnonzero(images != self._places.get(image_id, neighbours.MISSING - 1))
            near[image_id] = Near(images[others[:k]], self._weights(far[others[:k]]))
        return near

    def _weights(self, distances: np.ndarray) -> np.ndarray:
        if self._whitening is None:
            return np.ones(len(distances))
        return consensus.nearness(distances, consensus.TEMPERATURE)

    def _read(self, source: pipeline.Source) -> tuple[list[str], np.ndarray, list[list[str]]]:
        ids, features, captions = [], [], []
        for batch in self._run.network.images(source, _BATCH_SIZE):
            ids += [image_id.decode() for image_id in batch["ids"].numpy()]
            image = {name: batch[name] for name in batch if name in (schema.FEATURES, "pixels")}
            features.append(self._compute(image).numpy())
            captions += [
                [text.decode(errors="replace") for text in some]
                for some in batch["captions"].to_list()
            ]
        return ids, np.concatenate(features), captions

"""The signatures of a served index: search among images and sentences, in one graph.

K results are fixed at export; where there are fewer, or none, as for a query without a known word
or for zero or non-finite features, the rest is "" with `schema.MISSING_LOG_PROB`. An index with
fewer than two captioned images has no `caption_reranked`.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from export.index_captions import FEWEST, Reranker
from mrnn_tf import schema
from mrnn_tf.config import BeamSearch, field
from mrnn_tf.consensus.neighbours import K as NEIGHBOURS
from mrnn_tf.inference import zeros_to_nan
from mrnn_tf.model.layers import scaled_tanh
from mrnn_tf.retrieval.index import Index
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.search import BY_COUNT, Hits, Searcher, SimilarImages
from mrnn_tf.run import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexSettings(BeamSearch):
    """What an index fixes: K results of a search, and N captions, reranked by neighbours."""

    k: int = field(10, "results of a search", at_least=1)
    shortlist: int = field(
        BY_COUNT, "candidates that are scored exactly; 0 chooses by their number", at_least=0
    )
    beam: int = field(10, "captions of an image that are reranked", at_least=1)
    neighbours: int = field(
        NEIGHBOURS, "near images whose captions they are compared with", at_least=1
    )


class IndexServable:
    """An index with the language part of its model and the tokeniser.

    Args:
        run: Run, that made the index.
        index: Index.
        settings: IndexSettings.
    """

    name = schema.INDEX
    default = schema.SEARCH_IMAGES

    def __init__(self, run: Run, index: Index, settings: IndexSettings):
        self.network, self.vocabulary, self.settings = run.network, run.vocabulary, settings
        self.index = index
        self.searcher = Searcher(
            Scorer(run.network.model), index.mean, np.asarray(index.images), index.table
        )
        self.similar = SimilarImages(np.asarray(index.images))
        # The last text is empty and stands for a missing one, and for the image of no sentence.
        nobody = len(index.images)
        owners = np.append(np.where(index.owners < 0, nobody, index.owners), nobody)
        self._texts = {
            "ids": _strings(index.ids),
            "captions": _strings(index.captions),
            "owners": tf.Variable(owners.astype(np.int32), trainable=False),
        }
        self.reranker = None
        if len(np.unique(index.owners[index.owners >= 0])) >= FEWEST:
            self.reranker = Reranker(run, index, settings, settings.neighbours)

    def search_images(self, sentences: tf.Tensor) -> dict[str, tf.Tensor]:
        """The images that give each sentence the highest log P(s|I)."""
        ids = self.vocabulary.ids(sentences)
        ends = tf.fill([tf.shape(sentences)[0], 1], schema.END_ID)
        words = tf.concat([ids, tf.RaggedTensor.from_tensor(ends)], axis=1)
        hits = self.searcher.search_images(
            words.to_tensor(schema.PAD_ID), self.settings.k, self.settings.shortlist
        )
        return self._found_images(hits)

    def search_sentences(self, features: tf.Tensor) -> dict[str, tf.Tensor]:
        """The sentences with the highest log P(s|I) - log P(s), and whose they are."""
        return self.sentences_of(self._project(features))

    def sentences_of(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """As `search_sentences`, of projected images a [B, M]."""
        hits = self.searcher.search_sentences(images, self.settings.k, self.settings.shortlist)
        rows = _or_last(hits.rows, len(self.index.captions))
        owners = tf.gather(self._texts["owners"], rows)
        return {
            schema.SENTENCES: tf.gather(self._texts["captions"], rows),
            schema.IDS: tf.gather(self._texts["ids"], owners),
            schema.SCORES: _scores(hits),
        }

    def similar_images(self, features: tf.Tensor) -> dict[str, tf.Tensor]:
        """The nearest images by refined features; the score is minus the Euclidean distance."""
        settings = self.settings
        return self._found_images(
            self.similar.search(self._project(features), settings.k, settings.shortlist)
        )

    def caption_reranked(self, features: tf.Tensor) -> dict[str, tf.Tensor]:
        """Captions of images, those first that say what the captions of near images say."""
        return self.reranker.captions(features, scaled_tanh(self._project(features)))

    def signatures(self) -> dict[str, tf.types.experimental.ConcreteFunction]:
        """The functions that the SavedModel of an index offers, by name."""
        size = self.network.model.feature_size
        features = tf.TensorSpec([None, size], tf.float32, schema.FEATURES)
        methods = {
            schema.SEARCH_IMAGES: (
                self.search_images,
                tf.TensorSpec([None], tf.string, schema.SENTENCES),
            ),
            schema.SEARCH_SENTENCES: (self.search_sentences, features),
            schema.SIMILAR_IMAGES: (self.similar_images, features),
        }
        if self.reranker is not None:
            methods[schema.CAPTION_RERANKED] = self.caption_reranked, features
        functions = {
            name: tf.function(method, input_signature=[spec]).get_concrete_function()
            for name, (method, spec) in methods.items()
        }
        return {**functions, schema.SERVING_DEFAULT: functions[self.default]}

    def tracked(self) -> tf.Module:
        """What a SavedModel must own: raw variables, as for the model's own servable."""
        root = tf.Module(name=self.name)
        root.weights = [variable.value for variable in self.network.model.variables]
        root.mean_features, root.vocabulary = self.network.mean_features, self.vocabulary
        root.arrays = {**self.searcher.arrays, **self.similar.arrays, **self._texts}
        root.reranker = self.reranker
        return root

    def _project(self, features: tf.Tensor) -> tf.Tensor:
        """a [B, M] of images; NaN where features are zero or not finite."""
        return self.network.model.project_image(zeros_to_nan(features))["multimodal"]

    def _found_images(self, hits: Hits) -> dict[str, tf.Tensor]:
        rows = _or_last(hits.rows, len(self.index.ids))
        return {schema.IDS: tf.gather(self._texts["ids"], rows), schema.SCORES: _scores(hits)}


def _or_last(rows: tf.Tensor, last: int) -> tf.Tensor:
    return tf.where(rows < 0, last, rows)


def _scores(hits: Hits) -> tf.Tensor:
    return tf.maximum(hits.scores, schema.MISSING_LOG_PROB)


def _strings(texts: Sequence[bytes]) -> tf.Variable:
    return tf.Variable(np.array([*texts, b""], object), trainable=False, dtype=tf.string)

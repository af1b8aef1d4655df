"""The signatures of a served index: search among images and sentences, in one graph.

K results are fixed at export; where there are fewer, or none, as for a query without a known word
or with too many words, or for zero or non-finite features, the rest is "" with
`schema.MISSING_LOG_PROB`. An index with fewer than two captioned images has no `caption_reranked`.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from export.options import IndexSettings
from mrnn_tf import schema
from mrnn_tf.consensus.neighbours import Neighbourhood, RefinedSearch
from mrnn_tf.consensus.ngrams import Corpus
from mrnn_tf.consensus.reranking import consensus
from mrnn_tf.consensus.similarity import CiderD
from mrnn_tf.inference import Inference, zeros_to_nan
from mrnn_tf.model.layers import scaled_tanh
from mrnn_tf.model_info import KEYS, ModelInfo
from mrnn_tf.retrieval.centres import Centres
from mrnn_tf.retrieval.index import Index
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.search import Searcher, listed
from mrnn_tf.run import Run


class IndexServable:
    """An index with the language part of the run that made it.

    Attributes:
        corpus: the captions of the images that have some.
        neighbourhood: of the refined features of these images; `None` where they are too few.
    """

    name = schema.INDEX
    default = schema.SEARCH_IMAGES

    def __init__(self, run: Run, index: Index, settings: IndexSettings):
        self.network, self.vocabulary, self.settings = run.network, run.vocabulary, settings
        self.info = ModelInfo(run, settings.to_dict())
        centres = Centres.of(index.sample)
        self.searcher = Searcher(Scorer(run.network.model), centres, index.images, index.table)
        self._similar = RefinedSearch(self.searcher.arrays["images"])
        # Its images are those of the searcher: there is one copy, once `index` is gone.
        images = np.asarray(self.searcher.arrays["images"].value())
        self.index = dataclasses.replace(index, images=images)
        # The last text is empty and stands for a missing one, and for the image of no sentence.
        owners = np.append(np.where(index.owners < 0, len(images), index.owners), len(images))
        self._texts = {
            "ids": _strings(index.ids),
            "captions": _strings(index.captions),
            "owners": tf.Variable(owners.astype(np.int32), trainable=False),
        }
        captioned, captions = _captioned(index)
        self.neighbourhood = self._cider = None
        if len(captioned) > 1:  # of fewer there is nothing to whiten
            self.corpus, self._inference = Corpus.of(captions), Inference(run, None, settings)
            self._cider = CiderD(self.corpus)
            self.neighbourhood = Neighbourhood(scaled_tanh(images[captioned]).numpy())

    def search_images(self, sentences: tf.Tensor) -> dict[str, tf.Tensor]:
        """The images that give each sentence the highest log P(s|I)."""
        return self._search_images(sentences, self.settings.shortlist)

    def search_images_exact(self, sentences: tf.Tensor) -> dict[str, tf.Tensor]:
        """As `search_images`, certainly the best of all images."""
        return self._search_images(sentences, None)

    def search_prefix(self, prefix: tf.Tensor) -> dict[str, tf.Tensor]:
        """The images that give the first words of a sentence the highest log P, and each word's."""
        words = self._words(prefix, self.settings.max_prefix_words)
        hits = self.searcher.search_images(words, self.settings.k, self.settings.shortlist)
        scores = self.searcher.word_scores(words, hits.rows)
        padding = self.settings.max_prefix_words - tf.shape(words)[1]
        scores = tf.pad(scores, [[0, 0], [0, 0], [0, padding]])
        shape = [None, self.settings.k, self.settings.max_prefix_words]
        found = self._images(hits.rows, hits.scores)
        return {**found, schema.WORD_SCORES: tf.ensure_shape(scores, shape)}

    def search_sentences(self, features: tf.Tensor) -> dict[str, tf.Tensor]:
        """The sentences with the highest log P(s|I) - log P(s), and whose they are."""
        images = self._project(features)
        hits = self.searcher.search_sentences(images, self.settings.k, self.settings.shortlist)
        rows = tf.where(hits.rows < 0, len(self.index.captions), hits.rows)
        owned = self._images(tf.gather(self._texts["owners"], rows), hits.scores)
        return {schema.SENTENCES: tf.gather(self._texts["captions"], rows), **owned}

    def similar_images(self, features: tf.Tensor) -> dict[str, tf.Tensor]:
        """The nearest images by refined features; the score is minus the Euclidean distance."""
        k, refined = self.settings.k, scaled_tanh(self._project(features))
        images, shortlist = len(self.index.ids), self.settings.shortlist
        candidates = listed(images, k, shortlist)
        if candidates < images:  # half of them hold the ten best: benchmarks/index_types.py
            candidates //= 2
        rows, distances = self._similar.candidates(refined, max(10 * k, candidates))
        return self._images(rows[:, :k], -distances[:, :k])

    def caption_reranked(self, features: tf.Tensor) -> dict[str, tf.Tensor]:
        """Captions [B, N] of images, those first that say what the captions of near images say.

        Near are those images whose refined features, whitened, are near, and the nearer ones count
        more: the way that reranked best on Flickr8k.
        """
        decoded = self._inference.best_sentences(features)
        captions = self.vocabulary.sentences(decoded.ids)
        refined = scaled_tanh(self._project(features))
        near = self.neighbourhood.near(refined, self.settings.neighbours)
        is_caption = decoded.log_probs > schema.MISSING_LOG_PROB
        scores = consensus(self._cider, captions, near)
        scores = tf.where(is_caption, scores, schema.MISSING_LOG_PROB)
        scores, order = tf.math.top_k(scores, scores.shape[1])
        return {
            schema.CAPTIONS: tf.gather(captions, order, batch_dims=1),
            schema.LOG_PROBS: tf.gather(decoded.log_probs, order, batch_dims=1),
            schema.CONSENSUS: scores,
        }

    def signatures(self) -> dict[str, tf.types.experimental.ConcreteFunction]:
        """The functions that the SavedModel of an index offers, by name."""
        size = self.network.model.feature_size
        features = tf.TensorSpec([None, size], tf.float32, schema.FEATURES)
        sentences = tf.TensorSpec([None], tf.string, schema.SENTENCES)
        prefix = tf.TensorSpec([None], tf.string, schema.PREFIX)
        methods = {
            schema.SEARCH_IMAGES: (self.search_images, sentences),
            schema.SEARCH_IMAGES_EXACT: (self.search_images_exact, sentences),
            schema.SEARCH_PREFIX: (self.search_prefix, prefix),
            schema.SEARCH_SENTENCES: (self.search_sentences, features),
            schema.SIMILAR_IMAGES: (self.similar_images, features),
            schema.MODEL_INFO: (self.info.lookup, KEYS),
        }
        if self.neighbourhood is not None:
            methods[schema.CAPTION_RERANKED] = self.caption_reranked, features
        functions = {
            name: tf.function(method, [spec], autograph=False).get_concrete_function()
            for name, (method, spec) in methods.items()
        }
        return {**functions, schema.SERVING_DEFAULT: functions[self.default]}

    def tracked(self) -> tf.Module:
        """What a SavedModel must own: raw variables, as for the model's own servable."""
        root = tf.Module(name=self.name)
        root.weights = [variable.value for variable in self.network.model.variables]
        for name, mean in self.network.means.items():
            setattr(root, name, mean)
        root.vocabulary = self.vocabulary
        root.arrays = {**self.searcher.arrays, **self._texts}
        root.similar, root.cider = self._similar, self._cider
        root.neighbourhood, root.info = self.neighbourhood, self.info
        return root

    def _search_images(self, sentences: tf.Tensor, shortlist: int | None) -> dict[str, tf.Tensor]:
        words = self._words(sentences, self.settings.max_text_words, [schema.END_ID])
        hits = self.searcher.search_images(words, self.settings.k, shortlist)
        return self._images(hits.rows, hits.scores)

    def _words(self, texts: tf.Tensor, max_words: int, end: Sequence[int] = ()) -> tf.Tensor:
        """The word ids [B, T] of texts, padded; a text of more than `max_words` has none."""
        ids, _ = self.vocabulary.short_ids(texts, max_words)
        ends = tf.repeat(tf.constant(end, tf.int32, [1, len(end)]), tf.shape(texts)[0], axis=0)
        words = tf.concat([ids, tf.RaggedTensor.from_tensor(ends)], axis=1)
        return words.to_tensor(schema.PAD_ID)

    def _project(self, features: tf.Tensor) -> tf.Tensor:
        """a [B, M] of images; NaN where features are zero or not finite."""
        images = self.network.model.project_image(zeros_to_nan(features))["multimodal"]
        return tf.where(tf.math.is_finite(images), images, float("nan"))

    def _images(self, rows: tf.Tensor, scores: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = tf.where(rows < 0, len(self.index.ids), tf.cast(rows, tf.int32))
        scores = tf.maximum(scores, schema.MISSING_LOG_PROB)
        return {schema.IDS: tf.gather(self._texts["ids"], rows), schema.SCORES: scores}


def _captioned(index: Index) -> tuple[np.ndarray, list[np.ndarray]]:
    """The rows of the images that have captions, and their captions."""
    order = np.argsort(index.owners, kind="stable")
    order = order[index.owners[order] >= 0]
    rows, first = np.unique(index.owners[order], return_index=True)
    texts = np.array([caption.decode(errors="replace") for caption in index.captions], object)
    return rows, [texts[own] for own in np.split(order, first[1:])]


def _strings(texts: Sequence[bytes]) -> tf.Variable:
    return tf.Variable(np.array([*texts, b""], object), trainable=False, dtype=tf.string)

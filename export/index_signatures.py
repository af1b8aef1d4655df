"""The signatures of a served index: search among images and sentences, in one graph.

A search has two stages. The inner product of one vector for a sentence with one for an image finds
a shortlist, the model's own log P(s|I) decides. Queries are answered one after the other, and rows
of the softmax a block at a time, so that memory does not grow with the batch.

K results are fixed at export; where there are fewer, or none, as for a query without a known word
or for features of zeros or what is no number, the rest is "" with `schema.MISSING_LOG_PROB`. An
index with fewer than two captioned images has no `caption_reranked`.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from export.index_captions import FEWEST, Reranker
from export.signatures import Settings, or_nothing
from mrnn_tf import schema
from mrnn_tf.config import BeamSearch
from mrnn_tf.consensus.neighbours import K as NEIGHBOURS
from mrnn_tf.model.layers import scaled_tanh
from mrnn_tf.retrieval.expansion import word_expansions
from mrnn_tf.retrieval.index import Index
from mrnn_tf.retrieval.scoring import ROWS, Scorer
from mrnn_tf.retrieval.search import BY_COUNT, shortlist_size
from mrnn_tf.run import Run

_MISSING = schema.MISSING_LOG_PROB


@dataclasses.dataclass(frozen=True)
class IndexSettings:
    """What an index fixes: K results of a search, and N captions, reranked by neighbours."""

    k: int = 10
    shortlist: int = BY_COUNT
    beam: int = 10
    neighbours: int = NEIGHBOURS
    max_words: int = 20
    length_power: float = BeamSearch.length_power

    def listed(self, items: int) -> int:
        """How many of the items are scored exactly, or all where there are fewer."""
        return max(self.k, self.shortlist or shortlist_size(items))

    @property
    def of_captions(self) -> Settings:
        """The settings of the beam search."""
        return Settings(beam=self.beam, max_words=self.max_words, length_power=self.length_power)


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
        self.scorer = Scorer(run.network.model)
        refined = scaled_tanh(index.images).numpy()
        self.arrays = {
            "mean": _variable(index.mean),
            "images": _variable(index.images),
            "refined": _variable(refined),
            "refined_squares": _variable(np.einsum("im,im->i", refined, refined)),
            "ids": _strings(index.ids),
            "words": _variable(index.words),
            "vectors": _variable(index.vectors),
            "at_mean": _variable((index.mean_log_probs - index.log_marginals).astype(np.float32)),
            "log_marginals": _variable(index.log_marginals.astype(np.float32)),
            "captions": _strings(index.captions),
            # A sentence without an image has the last id, which is empty.
            "owners": _variable(np.where(index.owners < 0, len(index.images), index.owners)),
        }
        if not isinstance(self.scorer.kernel, tf.Variable):  # computed, from tied weights
            self.arrays["kernel"] = self.scorer.kernel = _variable(self.scorer.kernel)
        self.reranker = None
        if len(np.unique(index.owners[index.owners >= 0])) >= FEWEST:
            self.reranker = Reranker(run, index, settings.of_captions, settings.neighbours)

    @property
    def feature_size(self) -> int:
        return self.network.model.feature_size

    def search_images(self, sentences: tf.Tensor) -> dict[str, tf.Tensor]:
        """The images that give each sentence the highest log P(s|I)."""
        ids = self.vocabulary.ids(sentences)
        ends = tf.fill([tf.shape(sentences)[0], 1], schema.END_ID)
        words = tf.concat([ids, tf.RaggedTensor.from_tensor(ends)], axis=1)
        askable = tf.reduce_any(ids != schema.UNKNOWN_ID, axis=1)
        rows, scores = self._for_each(
            self._images_of, words.to_tensor(schema.PAD_ID), askable, len(self.index.images)
        )
        return {schema.IDS: tf.gather(self.arrays["ids"], rows), schema.SCORES: scores}

    def search_sentences(self, features: tf.Tensor) -> dict[str, tf.Tensor]:
        """The sentences with the highest log P(s|I) - log P(s), and whose they are."""
        images, askable = self._project(features)
        rows, scores = self._for_each(self._sentences_of, images, askable, len(self.index.captions))
        owners = tf.pad(self.arrays["owners"], [[0, 1]], constant_values=len(self.index.ids))
        return {
            schema.SENTENCES: tf.gather(self.arrays["captions"], rows),
            schema.IDS: tf.gather(self.arrays["ids"], tf.gather(owners, rows)),
            schema.SCORES: scores,
        }

    def similar_images(self, features: tf.Tensor) -> dict[str, tf.Tensor]:
        """The nearest images by refined features; the score is minus the Euclidean distance."""
        images, askable = self._project(features)
        rows, scores = self._for_each(
            self._neighbours_of, scaled_tanh(images), askable, len(self.index.images)
        )
        return {schema.IDS: tf.gather(self.arrays["ids"], rows), schema.SCORES: scores}

    def caption_reranked(self, features: tf.Tensor) -> dict[str, tf.Tensor]:
        """Captions of images, those first that say what the captions of near images say."""
        images, _ = self._project(features)
        return self.reranker.captions(features, scaled_tanh(images))

    def tracked(self) -> tf.Module:
        """What a SavedModel must own: raw variables, as for the model's own servable."""
        root = tf.Module(name=self.name)
        root.weights = [each.value for each in self.network.model.variables]
        root.mean_features, root.vocabulary = self.network.mean_features, self.vocabulary
        root.arrays, root.reranker = self.arrays, self.reranker
        return root

    def _project(self, features: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """a [B, M], and of which images there is one [B]."""
        images = self.network.model.project_image(or_nothing(features))["multimodal"]
        return images, tf.reduce_all(tf.math.is_finite(images), axis=1)

    def _for_each(
        self, search: Callable, queries: tf.Tensor, askable: tf.Tensor, last: int
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Rows [B, K] and scores [B, K] of queries; a missing one has the row `last`."""
        k = self.settings.k
        specs = tf.TensorSpec([k], tf.int32), tf.TensorSpec([k], tf.float32)
        nothing = tf.fill([k], last), tf.fill([k], _MISSING)
        if not last:
            return tuple(tf.repeat(each[tf.newaxis], tf.shape(queries)[0], 0) for each in nothing)

        def answer(query: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            rows, scores = search(query, min(last, self.settings.listed(last)))
            scores, best = tf.math.top_k(scores, min(k, last))
            more = [[0, k - min(k, last)]]
            rows = tf.pad(tf.gather(rows, best), more, constant_values=last)
            return rows, tf.pad(scores, more, constant_values=_MISSING)

        return tf.map_fn(
            lambda one: tf.cond(one[1], lambda: answer(one[0]), lambda: nothing),
            (queries, askable),
            fn_output_signature=specs,
            parallel_iterations=1,
        )

    def _images_of(self, words: tf.Tensor, shortlist: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Images and their log P(s|I), for the words of a sentence, padded."""
        words = tf.boolean_mask(words, words != schema.PAD_ID)
        h = self._read(words[tf.newaxis])[0]
        length = tf.shape(words)[0]
        kernel, bias, mean = self.scorer.kernel, self.scorer.bias, self.arrays["mean"]

        def slopes(t: tf.Tensor) -> tf.Tensor:
            return word_expansions(kernel, bias, tf.gather(h, t), tf.gather(words, t), mean)[3]

        vector = tf.reduce_sum(_in_blocks(slopes, length, mean.shape), axis=0)
        _, near = tf.math.top_k(tf.linalg.matvec(self.arrays["images"], vector), shortlist)
        images = tf.gather(self.arrays["images"], near)

        def log_probs(pair: tf.Tensor) -> tf.Tensor:
            image, t = pair // length, pair % length
            return self.scorer.next_words(
                tf.gather(h, t), tf.gather(images, image), tf.gather(words, t)
            )

        scores = tf.reshape(_in_blocks(log_probs, shortlist * length), [shortlist, length])
        return near, tf.reduce_sum(scores, axis=1)

    def _sentences_of(self, image: tf.Tensor, shortlist: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Sentences and their log P(s|I) - log P(s), for an image a [M]."""
        arrays = self.arrays
        told = tf.linalg.matvec(arrays["vectors"], image - arrays["mean"])
        _, near = tf.math.top_k(arrays["at_mean"] + told, shortlist)
        words = tf.gather(arrays["words"], near)
        length = tf.reduce_max(tf.math.count_nonzero(words, axis=1))
        words = words[:, :length]
        h = self._read(words)
        places = tf.where(words != schema.PAD_ID)

        def log_probs(row: tf.Tensor) -> tf.Tensor:
            at = tf.gather(places, row)
            return self.scorer.next_words(tf.gather_nd(h, at), image, tf.gather_nd(words, at))

        scores = _in_blocks(log_probs, tf.shape(places)[0])
        totals = tf.math.segment_sum(scores, places[:, 0])  # every sentence has its end sign
        totals = tf.ensure_shape(totals, [shortlist])
        return near, totals - tf.gather(arrays["log_marginals"], near)

    def _neighbours_of(self, refined: tf.Tensor, shortlist: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Images and minus their distances from refined features [M]."""
        arrays = self.arrays
        nearness = 2 * tf.linalg.matvec(arrays["refined"], refined) - arrays["refined_squares"]
        near = tf.sort(tf.math.top_k(nearness, shortlist).indices)  # equals by their number
        # Not from the product, which is not exact for what lies near.
        return near, -tf.norm(tf.gather(arrays["refined"], near) - refined, axis=1)

    def _read(self, words: tf.Tensor) -> tf.Tensor:
        """h [S, T, M] of sentences [S, T]."""
        starts = tf.fill([tf.shape(words)[0], 1], schema.START_ID)
        return self.network.model.word_part(tf.concat([starts, words[:, :-1]], axis=1))


def index_signatures(
    servable: IndexServable,
) -> dict[str, tf.types.experimental.ConcreteFunction]:
    """The functions that the SavedModel of an index offers, by name."""
    features = tf.TensorSpec([None, servable.feature_size], tf.float32, schema.FEATURES)
    sentences = tf.TensorSpec([None], tf.string, schema.SENTENCES)
    methods = {
        schema.SEARCH_IMAGES: (servable.search_images, sentences),
        schema.SEARCH_SENTENCES: (servable.search_sentences, features),
        schema.SIMILAR_IMAGES: (servable.similar_images, features),
    }
    if servable.reranker is not None:
        methods[schema.CAPTION_RERANKED] = servable.caption_reranked, features
    found = {
        name: tf.function(method, input_signature=[spec]).get_concrete_function()
        for name, (method, spec) in methods.items()
    }
    return {**found, schema.SERVING_DEFAULT: found[servable.default]}


def _in_blocks(
    compute: Callable[[tf.Tensor], tf.Tensor], count: tf.Tensor, shape: Sequence[int] = ()
) -> tf.Tensor:
    """What `compute` says of row numbers [R], for all of `count` rows, at least one."""
    parts = tf.TensorArray(
        tf.float32, size=0, dynamic_size=True, infer_shape=False, element_shape=[None, *shape]
    )

    def more(block: tf.Tensor, parts: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        rows = tf.range(block * ROWS, tf.minimum((block + 1) * ROWS, count))
        return block + 1, parts.write(block, compute(rows))

    _, parts = tf.while_loop(
        lambda block, _: block * ROWS < count, more, (0, parts), parallel_iterations=1
    )
    return parts.concat()


def _variable(array: np.ndarray | tf.Tensor) -> tf.Variable:
    return tf.Variable(array, trainable=False)


def _strings(texts: Sequence[bytes]) -> tf.Variable:
    """Texts, and an empty one at the end, which stands for a missing one."""
    return tf.Variable(np.array([*texts, b""], object), trainable=False, dtype=tf.string)

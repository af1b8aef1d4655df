"""Consensus reranking: the hypothesis that says what the captions of similar images say.

The score of a hypothesis is its mean similarity to the m most similar captions among those of the
k nearest training images. `Compared` holds the similarities of all images, from which every k, m
and method follows without comparing again.

>>> corpus = Corpus.of([["a dog runs", "a dog"], ["a red car", "the car"]])
>>> n_best = {7: NBest(("a red car", "a dog"))}
>>> compared = Comparison("bleu", corpus)(n_best, Near([[0]], [[1.0]]))
>>> order(compared.scores("bleu", RerankSettings(k=1, m=2))[7])
[1, 0]
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from mrnn_tf import text
from mrnn_tf.config import BY_NEIGHBOURS, COMBINED, MBR, BeamSearch, RerankSettings
from mrnn_tf.consensus.neighbours import Near
from mrnn_tf.consensus.ngrams import Corpus
from mrnn_tf.consensus.similarity import SIMILARITIES, NGramSimilarity
from mrnn_tf.errors import UserError
from mrnn_tf.metrics.captions import tokenize_lists
from mrnn_tf.metrics.coco import ImageId
from mrnn_tf.metrics.nbest import NBest

M = {"bleu": 175, "cider": 125}  # the paper's
_BATCH_SIZE = 32  # images


@dataclasses.dataclass(frozen=True)
class Compared:
    """The hypotheses of I images, at most N each, with all that they are compared with."""

    n_best: Mapping[ImageId, NBest]
    to_captions: list[tuple[tf.Tensor, ...]]  # of every batch, what `to_neighbours` returns
    compare_each_other: Callable[[], np.ndarray]  # makes the similarities [I, N, N], where needed

    def scores(self, method: str, settings: RerankSettings) -> dict[ImageId, np.ndarray]:
        """What the hypotheses of every image are worth by a method that is no oracle."""
        if method == MBR:
            values = self.by_hypotheses
        else:
            values = self.by_neighbours(settings.k, settings.m or M[similarity_of(method)])
        if method == COMBINED and settings.weight:
            values = (1 - settings.weight) * values + settings.weight * self.by_hypotheses
        scores = {}
        for (image, hypotheses), row in zip(self.n_best.items(), values, strict=True):
            scores[image] = row[: len(hypotheses.captions)]
            if method == COMBINED and settings.log_prob:
                scores[image] = scores[image] + settings.log_prob * _log_prob_a_word(hypotheses)
        return scores

    def by_neighbours(self, k: int, m: int) -> np.ndarray:
        """The consensus [I, N] with the captions of the k nearest images.

        Where they have fewer than m captions, all count; where there are none, all scores are 0.
        """
        parts = [
            mean_of_highest(values, tf.where(neighbour < k, weights, 0.0), m)
            for values, neighbour, weights in self.to_captions
        ]
        return np.concatenate(parts)

    @functools.cached_property
    def by_hypotheses(self) -> np.ndarray:
        """The mean similarity [I, N] to the other hypotheses; 0 for a single one."""
        similarities = self.compare_each_other()
        others = similarities.sum(axis=2) - similarities.diagonal(axis1=1, axis2=2)
        counts = np.array([len(hypotheses.captions) for hypotheses in self.n_best.values()])
        return others / np.maximum(counts - 1, 1)[:, np.newaxis]


class Comparison:
    """Compares the hypotheses of images by the similarity of a method that is no oracle.

    The corpus has the captions of the images among which neighbours are; `mbr` needs none.
    """

    def __init__(self, method: str, corpus: Corpus | None = None):
        if similarity_of(method) not in SIMILARITIES:
            known = ", ".join((MBR, *BY_NEIGHBOURS))
            raise UserError(f"`method` must be one of {known}, not {method!r}.")
        similarity = SIMILARITIES[similarity_of(method)](corpus or Corpus.of([]))
        kinds = tf.string, tf.int64, tf.float64
        texts, images, weights = (tf.TensorSpec([None, None], kind) for kind in kinds)

        @tf.function(autograph=False, input_signature=[texts, images, weights])
        def to_captions(hypotheses, images, weights):
            return to_neighbours(similarity, hypotheses, Near(images, weights))

        @tf.function(autograph=False, input_signature=[texts])
        def to_each_other(hypotheses):
            return similarity.to_sentences(hypotheses, hypotheses)

        self._to_captions, self._to_each_other = to_captions, to_each_other

    def __call__(self, n_best: Mapping[ImageId, NBest], near: Near | None = None) -> Compared:
        """Compares hypotheses; `near` are the neighbours of their images, none by default."""
        captions = {image: hypotheses.captions for image, hypotheses in n_best.items()}
        texts = tokenize_lists(captions).values()
        columns = [*itertools.zip_longest(*texts, fillvalue="")] or [[""] * len(texts)]
        near = near or Near(*np.zeros((2, len(texts), 0)))
        arrays = np.array(columns, object).T, np.int64(near.images), np.float64(near.weights)
        cuts = range(_BATCH_SIZE, len(texts), _BATCH_SIZE)
        batches = [np.array_split(array, cuts) for array in arrays]

        def compare_each_other() -> np.ndarray:
            return np.concatenate([self._to_each_other(hypotheses) for hypotheses in batches[0]])

        return Compared(n_best, [*map(self._to_captions, *batches)], compare_each_other)


def similarity_of(method: str) -> str:
    """The similarity that a method compares by; that of `mbr` needs no training captions."""
    return {MBR: "bleu", COMBINED: "cider"}.get(method, method)


def to_neighbours(
    similarity: NGramSimilarity, hypotheses: tf.Tensor, near: Near
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Similarities [B, N, C] to the captions of neighbours, whose they are, and their weights."""
    values, neighbour = similarity.to_captions(hypotheses, near.images)
    padded = tf.pad(tf.cast(near.weights, tf.float64), [[0, 0], [1, 0]])
    return values, neighbour, tf.gather(padded, neighbour + 1, batch_dims=1)


def consensus(
    similarity: NGramSimilarity, captions: tf.Tensor, near: Near, m: int = M["cider"]
) -> tf.Tensor:
    """The consensus float32 [B, N] of captions [B, N] of any spelling, as an index answers it.

    The consensus of an empty caption is 0. The m most similar captions of neighbours count.
    """
    if m < 1:
        raise UserError(f"`m` must be 1 at least, not {m}.")
    values, _, weights = to_neighbours(similarity, text.tokenized(captions), near)
    return tf.ensure_shape(tf.cast(mean_of_highest(values, weights, m), tf.float32), captions.shape)


def mean_of_highest(similarities: tf.Tensor, weights: tf.Tensor, m: int) -> tf.Tensor:
    """The weighted mean [B, N] of the m similarities of [B, N, C] that weigh most and are highest.

    Padding has the weight 0: nothing is below 0, so that it stands for captions that m would have
    beyond all others.
    """
    weights = tf.convert_to_tensor(weights)
    m = tf.minimum(m, tf.shape(weights)[1])
    highest, _ = tf.math.top_k(similarities * weights[:, tf.newaxis], m, sorted=False)
    most, _ = tf.math.top_k(weights, m, sorted=False)
    total = tf.reduce_sum(most, axis=1, keepdims=True)
    return tf.math.divide_no_nan(tf.reduce_sum(highest, axis=2), total)


def order(scores: np.ndarray) -> list[int]:
    """The hypotheses, the best first; of equals the one that was first before."""
    if np.isnan(scores).any():
        raise UserError("`scores` must not hold NaN, which has no place in an order.")
    return np.argsort(-scores, kind="stable").tolist()


def _log_prob_a_word(hypotheses: NBest) -> np.ndarray:
    if hypotheses.log_probs is None:
        raise UserError("The n-best lists have no `log_probs`: add them, or set `log_prob` to 0.")
    lengths = [len(caption.split()) + 1 for caption in hypotheses.captions]  # with the end token
    return np.array(hypotheses.log_probs) / np.array(lengths) ** BeamSearch.length_power

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
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from mrnn_tf import text
from mrnn_tf.config import BeamSearch
from mrnn_tf.consensus.neighbours import K, Near
from mrnn_tf.consensus.ngrams import Corpus
from mrnn_tf.consensus.similarity import SIMILARITIES, NGramSimilarity
from mrnn_tf.errors import UserError
from mrnn_tf.metrics.captions import tokenize_lists
from mrnn_tf.metrics.coco import ImageId
from mrnn_tf.metrics.nbest import NBest

M = {"bleu": 175, "cider": 125}  # the paper's
MBR, COMBINED = "mbr", "combined"
BY_NEIGHBOURS = (*SIMILARITIES, COMBINED)
ORACLES = ("oracle_cider", "oracle_bleu")
METHODS = (MBR, *BY_NEIGHBOURS, *ORACLES)
_BATCH_SIZE = 32  # images


@dataclasses.dataclass(frozen=True)
class RerankSettings:
    """How hypotheses are scored by a method.

    The weights of `combined` were tuned on Flickr8k's validation images: of a run that was trained
    on CIDEr, other hypotheses lower the scores with any weight, and log P raises BLEU-4.

    Attributes:
        k: how many neighbours count.
        m: how many of their captions count; the paper's number for the similarity by default.
        weight: what the other hypotheses count in `combined`, 0 to 1.
        log_prob: what log P / words^0.7 counts in `combined`.
    """

    k: int = K
    m: int | None = None
    weight: float = 0.0
    log_prob: float = 0.2


@dataclasses.dataclass(frozen=True)
class Compared:
    """The hypotheses of I images, at most N each, with all that they are compared with.

    Attributes:
        n_best: the hypotheses.
        to_captions: float64 [I, N, C], similarities to captions of neighbours, 0 in padding.
        neighbour: int64 [I, C], whose caption it is: 0 is the nearest image.
        weights: float64 [I, C], what the caption counts; 0 in padding.
        compare_each_other: makes `to_each_other`, where a method needs it.
    """

    n_best: Mapping[ImageId, NBest]
    to_captions: np.ndarray
    neighbour: np.ndarray
    weights: np.ndarray
    compare_each_other: Callable[[], np.ndarray]

    @functools.cached_property
    def to_each_other(self) -> np.ndarray:
        """The similarities of the hypotheses: float64 [I, N, N]."""
        return self.compare_each_other()

    def scores(self, method: str, settings: RerankSettings) -> dict[ImageId, np.ndarray]:
        """What the hypotheses of every image are worth by a method that is no oracle."""
        k, m = settings.k, settings.m or M[similarity_of(method)]
        if method == MBR:
            values = self.by_hypotheses()
        elif method == COMBINED and settings.weight:
            values = self.by_both(k, m, settings.weight)
        else:
            values = self.by_neighbours(k, m)
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
        if k < 1 or m < 1:
            raise UserError(f"`k` and `m` must be 1 at least, not {k} and {m}.")
        weights = np.where(self.neighbour < k, self.weights, 0.0)
        return mean_of_highest(self.to_captions, weights, m).numpy()

    def by_hypotheses(self) -> np.ndarray:
        """The mean similarity [I, N] to the other hypotheses; 0 for a single one."""
        others = self.to_each_other.sum(axis=2) - self.to_each_other.diagonal(axis1=1, axis2=2)
        counts = np.array([len(hypotheses.captions) for hypotheses in self.n_best.values()])
        return others / np.maximum(counts - 1, 1)[:, np.newaxis]

    def by_both(self, k: int, m: int, weight: float) -> np.ndarray:
        """The consensus [I, N] with neighbours and other hypotheses, which have `weight` of it."""
        if not 0 <= weight <= 1:
            raise UserError(f"`weight` must be between 0 and 1, not {weight}.")
        return (1 - weight) * self.by_neighbours(k, m) + weight * self.by_hypotheses()


class Comparison:
    """Compares the hypotheses of images by the similarity of a method.

    Args:
        method: str. One of `METHODS` that is no oracle.
        corpus: the captions of the images among which neighbours are; `mbr` needs none.
    """

    def __init__(self, method: str, corpus: Corpus | None = None):
        if similarity_of(method) not in SIMILARITIES:
            raise UserError(
                f"`method` must be one of {', '.join((MBR, *BY_NEIGHBOURS))}, not {method!r}."
            )
        similarity = SIMILARITIES[similarity_of(method)](corpus or Corpus.of([]))
        texts, numbers = (tf.TensorSpec([None, None], kind) for kind in (tf.string, tf.int64))
        weights = tf.TensorSpec([None, None], tf.float64)

        @tf.function(input_signature=[texts, numbers, weights])
        def to_captions(hypotheses, images, weights):
            return to_neighbours(similarity, hypotheses, Near(images, weights))

        @tf.function(input_signature=[texts])
        def to_each_other(hypotheses):
            return similarity.to_sentences(hypotheses, hypotheses)

        self._to_captions, self._to_each_other = to_captions, to_each_other

    def __call__(self, n_best: Mapping[ImageId, NBest], near: Near | None = None) -> Compared:
        """Compares the hypotheses of every image.

        Args:
            n_best: the hypotheses of every image.
            near: the neighbours of these images in the corpus, in their order; none by default.
        """
        texts = tokenize_lists({image: each.captions for image, each in n_best.items()}).values()
        width = max([1, *map(len, texts)])
        hypotheses = np.full((len(texts), width), "", object)
        for row, captions in enumerate(texts):
            hypotheses[row, : len(captions)] = captions
        near = near or Near(*np.zeros((2, len(texts), 0)))
        images, weights = np.asarray(near.images, np.int64), np.asarray(near.weights, np.float64)
        parts = zip(*_batched(self._to_captions, hypotheses, images, weights), strict=True)
        return Compared(
            n_best,
            *map(_concatenated, parts),
            lambda: np.concatenate(list(_batched(self._to_each_other, hypotheses))),
        )


def similarity_of(method: str) -> str:
    """The similarity that a method compares by.

    `mbr` needs no training captions, and so a similarity that weighs words by none.
    """
    return {MBR: "bleu", COMBINED: "cider"}.get(method, method)


def to_neighbours(
    similarity: NGramSimilarity, hypotheses: tf.Tensor, near: Near
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Similarities [B, N, C] to the captions of neighbours, whose they are, and their weights."""
    values, neighbour = similarity.to_captions(hypotheses, near.images)
    padded = tf.pad(near.weights, [[0, 0], [1, 0]])
    return values, neighbour, tf.gather(padded, neighbour + 1, batch_dims=1)


def consensus(
    similarity: NGramSimilarity, captions: tf.Tensor, near: Near, m: int = M["cider"]
) -> tf.Tensor:
    """The consensus float32 [B, N] of captions with their neighbours: what an index answers with.

    Args:
        similarity: NGramSimilarity.
        captions: string [B, N], any spelling. The consensus of an empty one is 0.
        near: the neighbours [B, k] and what they count; negative ones are left out.
        m: int. How many captions count.
    """
    if m < 1:
        raise UserError(f"`m` must be 1 at least, not {m}.")
    near = Near(near.images, tf.cast(near.weights, tf.float64))
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
    return tf.math.divide_no_nan(
        tf.reduce_sum(highest, axis=2), tf.reduce_sum(most, axis=1)[:, tf.newaxis]
    )


def order(scores: np.ndarray) -> list[int]:
    """The hypotheses, the best first; of equals the one that was first before."""
    return np.argsort(-scores, kind="stable").tolist()


def _log_prob_a_word(hypotheses: NBest) -> np.ndarray:
    if hypotheses.log_probs is None:
        raise UserError(
            "The n-best lists have no `log_probs`, which the method combined counts: add them, or "
            "let them count nothing (`log_prob` 0)."
        )
    lengths = [len(caption.split()) + 1 for caption in hypotheses.captions]  # with the end token
    return np.array(hypotheses.log_probs) / np.array(lengths) ** BeamSearch.length_power


def _batched(function: Callable, *arrays: np.ndarray):
    """What a function of tensors says of every batch of images, as arrays."""
    for begin in range(0, max(len(arrays[0]), 1), _BATCH_SIZE):
        batch = (tf.constant(each[begin : begin + _BATCH_SIZE]) for each in arrays)
        yield tf.nest.map_structure(lambda tensor: tensor.numpy(), function(*batch))


def _concatenated(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The rows of all batches; the last axis is padded by 0."""
    width = max(part.shape[-1] for part in parts)
    return np.concatenate(
        [np.pad(part, [(0, 0)] * (part.ndim - 1) + [(0, width - part.shape[-1])]) for part in parts]
    )

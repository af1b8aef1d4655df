"""The ways to choose among the hypotheses of an image."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from mrnn_tf.consensus import reranking as consensus
from mrnn_tf.consensus.ngrams import Corpus, tokenize_lists
from mrnn_tf.consensus.reranking import Compared, Comparison
from mrnn_tf.consensus.similarity import SIMILARITIES
from mrnn_tf.errors import UserError
from mrnn_tf.metrics.coco import ImageId
from mrnn_tf.metrics.nbest import NBest
from trainer.neighbourhood import Near

MBR, COMBINED = "mbr", "combined"
BY_NEIGHBOURS = (*SIMILARITIES, COMBINED)
ORACLES = ("oracle_cider", "oracle_bleu")
METHODS = (MBR, *BY_NEIGHBOURS, *ORACLES)
_LENGTH_POWER = 0.7  # as the beam search ranks sentences


@dataclasses.dataclass(frozen=True)
class Settings:
    """How hypotheses are scored by a method.

    The weights of `combined` were tuned on Flickr8k's validation images: of a run that was trained
    on CIDEr, other hypotheses lower the scores with any weight, and log P raises BLEU-4.

    Attributes:
        k: how many neighbours count.
        m: how many of their captions count; the paper's number for the similarity by default.
        weight: what the other hypotheses count in `combined`, 0 to 1.
        log_prob: what log P / words^0.7 counts in `combined`.
    """

    k: int = consensus.K
    m: int | None = None
    weight: float = 0.0
    log_prob: float = 0.2


def similarity_of(method: str) -> str:
    """The similarity that a method compares by.

    `mbr` needs no training captions, and so a similarity that weighs words by none.
    """
    return {MBR: "bleu", COMBINED: "cider"}.get(method, method)


def compare(
    method: str,
    n_best: Mapping[ImageId, NBest],
    corpus: Corpus | None = None,
    near: Mapping[str, Near] | None = None,
) -> dict[ImageId, Compared]:
    """Compares the hypotheses of every image with each other, and with neighbours where given.

    Args:
        method: str. One of `METHODS` that is no oracle.
        n_best: the hypotheses of every image.
        corpus: the training captions; `mbr` needs none.
        near: the neighbours of every image, by its id as text.
    """
    hypotheses = tokenize_lists({image: some.captions for image, some in n_best.items()})
    comparison = Comparison(similarity_of(method), corpus or Corpus.of([]))
    if near is None:
        return {image: comparison(some) for image, some in hypotheses.items()}
    return {
        image: comparison(some, near[str(image)].images, near[str(image)].weights)
        for image, some in hypotheses.items()
    }


def scores(method: str, compared: Compared, n_best: NBest, settings: Settings) -> np.ndarray:
    """What the hypotheses [N] of an image are worth by a method that is no oracle."""
    m = settings.m or consensus.M[similarity_of(method)]
    if method == MBR:
        return compared.by_hypotheses()
    if method != COMBINED:
        return compared.by_neighbours(settings.k, m)
    found = compared.by_both(settings.k, m, settings.weight)
    if settings.log_prob:
        found = found + settings.log_prob * _log_prob_a_word(n_best)
    return found


def _log_prob_a_word(n_best: NBest) -> np.ndarray:
    if n_best.log_probs is None:
        raise UserError(
            "The n-best lists have no `log_probs`, which the method combined counts: add them, or "
            "let them count nothing (--log_prob 0)."
        )
    lengths = np.array([len(caption.split()) + 1 for caption in n_best.captions])  # the end sign
    return np.array(n_best.log_probs) / lengths**_LENGTH_POWER

"""The marginal log P(s): how likely a sentence is for an average image.

An image's sentences are ranked by log P(s|I) - log P(s): without the second term short and common
sentences come first whatever the image. P(s) is the mean of P(s|I) over sampled training images,
as in the paper, or P(s|I) of the mean image, which stands for all (Kiros et al.).

Of a large sample few images are scored, and these stand for all: image i is taken with a
probability p_i that grows with its estimate of P(s|I) by the expansion's inner product, 1 for the
likeliest, and counts P(s|I) / p_i (Horvitz and Thompson). The images are taken in the order of
their estimates, at equal steps of the sum of p_i, so nothing is drawn and the result repeats.
Sentences that begin alike share the softmax rows of the images that they have in common.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.errors import UserError
from mrnn_tf.retrieval.expansion import Expansion
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.sentences import EncodedSentences, prefixes

SCORED = 32  # images a sentence, of a larger sample: benchmarks/index_building.py
_SLOPE = 0.6  # of log P(s|I) by its estimate, which promises too much far from the mean image
_LEAST = -500.0  # keeps what exp gives above 0


def sample_rows(count: int, size: int, seed: int) -> np.ndarray:
    """The rows of the sampled images among `count`, in order."""
    rng = np.random.default_rng(seed)
    return np.sort(rng.choice(count, min(size, count), replace=False))


def log_marginals(
    scorer: Scorer, expansion: Expansion, sample: np.ndarray, scored: int = SCORED
) -> np.ndarray:
    """log of the mean of P(s|I) over the images a [I, M], float64 [S].

    Exact where there are no more than `scored` images; else that many are scored for each sentence.
    """
    if not len(sample) or not np.isfinite(sample).all():
        raise UserError("`sample` must hold an image at least, and no NaN.")
    estimates = expansion.vectors.numpy() @ sample.T
    if not np.isfinite(estimates).all():
        raise UserError("An estimate of log P(s) is not finite: the weights of the run are not.")
    images, probabilities = _take(estimates, min(scored, len(sample)))
    log_probs = _score(scorer, expansion, sample, images) - np.log(probabilities)
    return tf.reduce_logsumexp(log_probs, axis=1).numpy() - np.log(len(sample))


def log_mean_exp(log_probs: np.ndarray | Sequence[Sequence[float]]) -> np.ndarray:
    """log of the mean of exp over the last axis, in float64."""
    log_probs = np.asarray(log_probs, np.float64)
    return tf.reduce_logsumexp(log_probs, axis=-1).numpy() - np.log(log_probs.shape[-1])


def _take(estimates: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The images [S, count] that stand for all [S, I], and their probabilities of being taken."""
    order = np.argsort(-estimates, axis=1)
    ordered = np.take_along_axis(estimates, order, axis=1).astype(np.float64)
    sizes = np.exp(np.maximum(_SLOPE * (ordered - ordered[:, :1]), _LEAST))
    rest = np.cumsum(sizes[:, ::-1], axis=1)[:, ::-1]  # from each image to the last
    left = count - np.arange(estimates.shape[1])
    # Certain are all before the first whose share of what is left is below 1.
    certain = np.argmax((left * sizes < rest) | (left == 1), axis=1)[:, np.newaxis]
    shares = (count - certain) * sizes / np.take_along_axis(rest, certain, axis=1)
    probabilities = np.where(np.arange(estimates.shape[1]) < certain, 1.0, shares)
    steps = np.floor(np.cumsum(probabilities, axis=1) + 0.5)
    taken = np.argsort(np.diff(steps, axis=1, prepend=0) <= 0, axis=1, kind="stable")[:, :count]
    return (
        np.take_along_axis(order, taken, axis=1),
        np.take_along_axis(probabilities, taken, axis=1),
    )


def _score(
    scorer: Scorer, expansion: Expansion, sample: np.ndarray, images: np.ndarray
) -> np.ndarray:
    """log P [S, n] of every sentence by its own images [S, n]; equal softmax rows are one."""
    words = expansion.words.numpy()
    places = np.argwhere(words != schema.PAD_ID)
    own = images[places[:, 0]]
    keys = prefixes(words)[tuple(places.T)][:, np.newaxis] * len(sample) + own
    order = np.argsort(keys, axis=None)
    starts = np.flatnonzero(np.diff(keys.ravel()[order], prepend=-1))
    log_probs = np.empty(keys.size)
    log_probs[order] = scorer.shared(
        EncodedSentences(expansion.h, expansion.words),
        places[order // keys.shape[1]].astype(np.int32),
        np.append(starts, keys.size).astype(np.int32),
        sample,
        own.ravel()[order[starts]].astype(np.int32),
    )
    # Every sentence has a word, the end token.
    firsts = np.flatnonzero(np.diff(places[:, 0], prepend=-1))
    return np.add.reduceat(log_probs.reshape(keys.shape), firsts, axis=0)

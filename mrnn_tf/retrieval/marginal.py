"""The marginal log P(s): how likely a sentence is for an average image.

An image's sentences are ranked by log P(s|I) - log P(s): without the second term short and common
sentences come first whatever the image. P(s) is the mean of P(s|I) over sampled training images,
as in the paper, or P(s|I) of the mean image, which stands for all (Kiros et al.).

The mean is that of few images: those that the sentence fits. So a large sample costs little more
than a small one: only the images that are likeliest by the expansion's inner products are scored,
and the others count nothing.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from mrnn_tf.errors import UserError
from mrnn_tf.retrieval.expansion import Expansion
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.sentences import EncodedSentences

LIKELIEST = 100


def sample_rows(count: int, size: int, seed: int) -> np.ndarray:
    """The rows of the sampled images among `count`, in order."""
    rng = np.random.default_rng(seed)
    return np.sort(rng.choice(count, min(size, count), replace=False))


def log_marginals(
    scorer: Scorer, expansion: Expansion, sample: np.ndarray, likeliest: int = LIKELIEST
) -> np.ndarray:
    """log of the mean of P(s|I) over the images a [I, M], float64 [S].

    Of more than `likeliest` images the `likeliest` are scored; the others count as 0.
    """
    if not len(sample) or not np.isfinite(sample).all():
        raise UserError("`sample` must hold an image at least, and no NaN.")
    sentences = EncodedSentences(expansion.h, expansion.words)
    likeliest = min(likeliest, len(sample))
    estimates = expansion.vectors.numpy() @ sample.T
    chosen = np.argpartition(-estimates, likeliest - 1, axis=1)[:, :likeliest]
    rows = np.repeat(np.arange(len(chosen)), likeliest)
    log_probs = scorer.pairs(sentences, rows, sample, chosen.ravel()).numpy()
    return log_mean_exp(log_probs.reshape(chosen.shape)) + np.log(likeliest / len(sample))


def log_mean_exp(log_probs: np.ndarray | Sequence[Sequence[float]]) -> np.ndarray:
    """log of the mean of exp over the last axis, in float64."""
    log_probs = np.asarray(log_probs, np.float64)
    return tf.reduce_logsumexp(log_probs, axis=-1).numpy() - np.log(log_probs.shape[-1])

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

from mrnn_tf.errors import UserError
from mrnn_tf.retrieval.expansion import Expansion
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.sentences import EncodedSentences

SAMPLE, MEAN, NONE = NORMALISERS = ("sample", "mean", "none")
SAMPLE_SIZE, LIKELIEST = 5000, 100


def sample_rows(count: int, size: int, seed: int) -> np.ndarray:
    """The rows of the sampled images among `count`, in order."""
    rng = np.random.default_rng(seed)
    return np.sort(rng.choice(count, min(size, count), replace=False))


def log_marginals(
    scorer: Scorer, expansion: Expansion, sample: np.ndarray, likeliest: int = LIKELIEST
) -> np.ndarray:
    """log of the mean of P(s|I) over the images a [I, M], float64 [S].

    Of more than `likeliest` images only so many are scored, and the others are taken for 0.
    """
    if not len(sample) or not np.isfinite(sample).all():
        raise UserError("`sample` must hold an image at least, and no NaN.")
    sentences = EncodedSentences(expansion.h, expansion.words)
    if len(sample) <= likeliest:
        return log_mean_exp(scorer.matrix(sentences, sample))
    estimates = expansion.vectors.numpy() @ sample.T
    chosen = np.argpartition(-estimates, likeliest, axis=1)[:, :likeliest]
    rows = np.repeat(np.arange(len(chosen)), likeliest)
    log_probs = scorer.pairs(sentences, rows, sample, chosen.ravel()).numpy()
    return log_mean_exp(log_probs.reshape(chosen.shape)) + np.log(likeliest / len(sample))


def log_mean_exp(log_probs: np.ndarray | Sequence[Sequence[float]]) -> np.ndarray:
    """log of the mean of exp over the last axis, in float64."""
    log_probs = np.asarray(log_probs, np.float64)
    with np.errstate(invalid="ignore"):  # on some processors NaN warns; callers refuse it by name
        return np.logaddexp.reduce(log_probs, axis=-1) - np.log(log_probs.shape[-1])

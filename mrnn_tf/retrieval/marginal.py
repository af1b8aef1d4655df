"""log P(s), which tells what a sentence owes to the image from what it says of any image.

An image's sentences are ranked by log P(s|I) - log P(s): without the second term short and common
sentences come first whatever the image. P(s) is the mean of P(s|I) over sampled training images,
as in the paper, or P(s|I) of one image that stands for all: the mean one (Kiros et al.) or the
learned null image.

The mean is that of few images: those that the sentence fits. So a large sample costs little more
than a small one: only the images that are likeliest by the expansion's inner products are scored,
and the others count nothing.
"""

from collections.abc import Sequence

import numpy as np

from mrnn_tf.errors import UserError
from mrnn_tf.retrieval.expansion import Expansion
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.sentences import Sentences

SAMPLE, MEAN, NULL, NONE = "sample", "mean", "null", "none"
NORMALISERS = (SAMPLE, MEAN, NULL, NONE)
SAMPLE_SIZE, LIKELIEST = 5000, 100


def sample_rows(count: int, size: int, seed: int) -> np.ndarray:
    """The rows of the sampled images among `count`, in order."""
    rng = np.random.default_rng(seed)
    return np.sort(rng.choice(count, min(size, count), replace=False))


def log_marginals(
    scorer: Scorer,
    sentences: Sentences,
    expansion: Expansion,
    sample: np.ndarray,
    likeliest: int = LIKELIEST,
) -> np.ndarray:
    """log of the mean of P(s|I) over the images a [I, M], float64 [S].

    Of more than `likeliest` images only so many are scored, and the others are taken for 0.
    """
    if not len(sample):
        raise UserError("`sample` must hold an image at least; it is empty.")
    if len(sample) <= likeliest:
        return log_mean_exp(scorer.matrix(sentences, sample))
    estimates = expansion.vectors @ sample.T
    chosen = np.argpartition(-estimates, likeliest, axis=1)[:, :likeliest]
    rows = np.repeat(np.arange(len(sentences)), likeliest)
    found = scorer.pairs(sentences, rows, sample, chosen.ravel()).reshape(chosen.shape)
    return log_mean_exp(found) + np.log(likeliest / len(sample))


def log_mean_exp(log_probs: np.ndarray | Sequence[Sequence[float]]) -> np.ndarray:
    """log of the mean of exp over the last axis, in float64."""
    log_probs = np.asarray(log_probs, np.float64)
    highest = log_probs.max(axis=-1, keepdims=True)
    return np.log(np.exp(log_probs - highest).mean(axis=-1)) + highest[..., 0]

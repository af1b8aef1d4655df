"""More images than a dataset has, and the sentences that are searched for among them."""

import numpy as np

from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.split import Split

SETTINGS = 200  # the first sentences choose the settings of a search, the others measure it


def mixtures(scorer: Scorer, features: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images [count, D] and then mixtures of two of them, projected; the row of one of the two."""
    rng, more = np.random.default_rng(0), max(0, count - len(features))
    pairs = rng.integers(0, len(features), (more, 2))
    shares = rng.uniform(0.2, 0.8, (more, 1)).astype(np.float32)
    parts = [scorer.project(features[:count])]
    for at in np.array_split(np.arange(more), range(4096, more, 4096)):
        one, other = features[pairs[at].T]
        parts.append(scorer.project(shares[at] * one + (1 - shares[at]) * other))
    return np.concatenate(parts), np.append(np.arange(count - more), pairs[:, 0])


def queries(split: Split) -> list[str]:
    """The captions of a split in a random order."""
    texts = [text for own in split.captions for text in own]
    return [texts[row] for row in np.random.default_rng(0).permutation(len(texts))]

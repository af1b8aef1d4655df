"""CIDEr-D of one sentence by others, with document frequencies of a fixed corpus.

pycocoevalcap takes the frequencies from the captions it scores against; a reward or a consensus
must take them from the training captions. The formula is the same.
"""

import collections
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mrnn_tf.errors import UserError

_N = 4
_SIGMA = 6.0

Gram = tuple[str, ...]


class Vector(NamedTuple):
    """A sentence as tf-idf weights of its n-grams."""

    weights: dict[Gram, float]
    norms: tuple[float, ...]  # of the n-grams of each n
    bigrams: int  # what the original calls the length


class CiderD:
    """Scores tokenised sentences, words joined by spaces.

    Args:
        corpus: the captions of every image of the corpus; an n-gram counts once an image.
    """

    def __init__(self, corpus: Iterable[Sequence[str]]):
        self._frequency = collections.Counter()
        images = 0
        for captions in corpus:
            self._frequency.update({gram for caption in captions for gram in _grams(caption)})
            images += 1
        if not images:
            raise UserError("`corpus` must hold the captions of an image at least; it is empty.")
        self._log_images = math.log(images)

    def vector(self, sentence: str) -> Vector:
        weights, squares, bigrams = {}, [0.0] * _N, 0
        for gram, count in _grams(sentence).items():
            weight = count * (self._log_images - math.log(max(1, self._frequency[gram])))
            weights[gram] = weight
            squares[len(gram) - 1] += weight * weight
            bigrams += count if len(gram) == 2 else 0
        return Vector(weights, tuple(map(math.sqrt, squares)), bigrams)

    def similarity(self, sentence: Vector, reference: Vector) -> float:
        """CIDEr-D of a sentence by one reference, 0 to 10."""
        shared = [0.0] * _N
        for gram, weight in sentence.weights.items():
            other = reference.weights.get(gram)
            if other is not None:
                shared[len(gram) - 1] += min(weight, other) * other
        norms = [a * b for a, b in zip(sentence.norms, reference.norms, strict=True)]
        cosines = [value / norm for value, norm in zip(shared, norms, strict=True) if norm]
        difference = sentence.bigrams - reference.bigrams
        return 10.0 / _N * sum(cosines) * math.exp(-(difference**2) / (2 * _SIGMA**2))

    def score(self, sentence: str, references: Sequence[str]) -> float:
        """CIDEr-D of a sentence by all its references."""
        own = self.vector(sentence)
        return sum(self.similarity(own, self.vector(each)) for each in references) / len(references)


def _grams(sentence: str) -> collections.Counter[Gram]:
    words = sentence.split()
    return collections.Counter(
        tuple(words[i : i + n]) for n in range(1, _N + 1) for i in range(len(words) - n + 1)
    )

"""What the captions of people say of every hypothesis: the upper bound of reranking.

It scores any choice of hypotheses at once, which is what tuning needs.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from pycocoevalcap.bleu.bleu_scorer import BleuScorer

from mrnn_tf.metrics.cider import CiderD
from mrnn_tf.metrics.coco import ImageId
from mrnn_tf.retrieval.ngrams import ORDERS, tokenize_lists

_NO_MATCH = 0.1  # for a BLEU of one sentence, as in nltk's smoothing method 1


class Oracle:
    """Scores the hypotheses of images by their references.

    Args:
        references: the raw captions of every image; those without words do not count.
        hypotheses: the raw hypotheses of images that have references. Their ids are the same.

    Attributes:
        cider: CIDEr-D [N] of the hypotheses of an image, with the frequencies of the references.
        bleu: smoothed BLEU-4 [N] of the hypotheses of an image.
    """

    def __init__(
        self,
        references: Mapping[ImageId, Sequence[str]],
        hypotheses: Mapping[ImageId, Sequence[str]],
    ):
        wanted = tokenize_lists(references)
        wanted = {image: list(filter(None, some)) for image, some in wanted.items()}
        self._cider = CiderD(some for some in wanted.values() if some)
        self.cider, self.bleu, self._counts = {}, {}, {}
        for image, some in tokenize_lists(hypotheses).items():
            if wanted[image] and some:
                self.cider[image] = self._ciders(some, wanted[image])
                self._counts[image] = _bleu_counts(some, wanted[image])
                logs = [_log_bleu(each, _NO_MATCH) for each in self._counts[image]]
                self.bleu[image] = np.exp(logs)

    def overall(
        self, chosen: Mapping[ImageId, int], images: Iterable[ImageId] | None = None
    ) -> dict[str, float]:
        """BLEU-4 and CIDEr of one hypothesis an image, as `metrics.captions.evaluate` has them."""
        images = list(self.cider if images is None else images)
        counts = sum(self._counts[image][chosen[image]] for image in images)
        cider = np.mean([self.cider[image][chosen[image]] for image in images])
        return {"bleu_4": float(np.exp(_log_bleu(counts))), "cider": float(cider)}

    def _ciders(self, hypotheses: list[str], references: list[str]) -> np.ndarray:
        vectors = [self._cider.vector(reference) for reference in references]
        return np.array(
            [
                np.mean([self._cider.similarity(self._cider.vector(each), v) for v in vectors])
                for each in hypotheses
            ]
        )


def _bleu_counts(hypotheses: list[str], references: list[str]) -> np.ndarray:
    """Words, words of the closest reference, n-grams and those found: [N, 2 + 4 + 4]."""
    scorer = BleuScorer(n=ORDERS)
    for each in hypotheses:
        scorer += (each, references)
    rows = []
    for each in scorer.ctest:
        _, closest = min((abs(words - each["testlen"]), words) for words in each["reflen"])
        rows.append([each["testlen"], closest, *each["guess"], *each["correct"]])
    return np.array(rows, float)


def _log_bleu(counts: np.ndarray, no_match: float = 0.0) -> float:
    words, closest, (guessed, found) = counts[0], counts[1], np.split(counts[2:], 2)
    if not found[0] or not (no_match or found.all()):
        return -np.inf
    precisions = np.where(found > 0, found, no_match) / np.maximum(guessed, 1)
    return float(np.log(precisions).mean() + min(0.0, 1 - closest / words))

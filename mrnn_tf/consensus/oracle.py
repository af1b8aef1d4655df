"""What the captions of people say of every hypothesis: the upper bound of reranking.

It scores any choice of hypotheses at once, which is what tuning needs.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from mrnn_tf.consensus.ngrams import ORDERS, Corpus, Sentences, tokenize_lists
from mrnn_tf.consensus.similarity import NO_MATCH, Cider
from mrnn_tf.metrics.coco import ImageId


class Oracle:
    """Scores the hypotheses of images by their references.

    Args:
        references: the raw captions of every image; those without words do not count.
        hypotheses: the raw hypotheses of images that have references. Their ids are the same.

    Attributes:
        cider: CIDEr-D [N] of the hypotheses of an image, with the frequencies of the references;
            images without references or hypotheses are left out.
        bleu: smoothed BLEU-4 [N] of the hypotheses of an image.
    """

    def __init__(
        self,
        references: Mapping[ImageId, Sequence[str]],
        hypotheses: Mapping[ImageId, Sequence[str]],
    ):
        wanted = tokenize_lists(references)
        wanted = {image: list(filter(None, some)) for image, some in wanted.items()}
        wanted = {image: some for image, some in wanted.items() if some}
        corpus = Corpus.of(wanted.values())
        cider = Cider(corpus)
        places = {image: place for place, image in enumerate(wanted)}
        self.cider, self.bleu, self._counts = {}, {}, {}
        for image, some in tokenize_lists(hypotheses).items():
            if image in wanted and some:
                sentences, rows = corpus.sentences(some), corpus.rows([places[image]])
                self.cider[image] = cider.to_captions(sentences, rows).mean(axis=1)
                self._counts[image] = _bleu_counts(corpus, sentences, rows)
                self.bleu[image] = _smoothed_bleu(self._counts[image])

    def overall(
        self, chosen: Mapping[ImageId, int], images: Iterable[ImageId] | None = None
    ) -> dict[str, float]:
        """BLEU-4 and CIDEr of one hypothesis an image, as `metrics.captions.evaluate` has them."""
        images = list(self.cider if images is None else images)
        counts = sum(self._counts[image][chosen[image]] for image in images)
        cider = np.mean([self.cider[image][chosen[image]] for image in images])
        return {"bleu_4": _bleu(counts), "cider": float(cider)}


def _bleu_counts(corpus: Corpus, sentences: Sentences, rows: np.ndarray) -> np.ndarray:
    """Words, words of the closest reference, n-grams and those found: [N, 2 + 4 + 4]."""
    most = corpus.counts_of(sentences.nodes, rows).toarray().max(axis=0)
    found = np.minimum(sentences.counts, most)
    found = [found[:, sentences.orders == n + 1].sum(axis=1) for n in range(ORDERS)]
    guessed = [np.maximum(sentences.lengths - n, 0) for n in range(ORDERS)]
    lengths = np.sort(corpus.lengths[rows])  # of two equally close ones the shorter
    nearest = np.abs(lengths - sentences.lengths[:, np.newaxis]).argmin(axis=1)
    return np.stack([sentences.lengths, lengths[nearest], *guessed, *found], axis=1).astype(float)


def _smoothed_bleu(counts: np.ndarray) -> np.ndarray:
    """BLEU-4 [N] of single sentences, which is 0 without a word that a reference has."""
    guessed, found = np.split(counts[:, 2:], 2, axis=1)
    precisions = np.where(found > 0, found, NO_MATCH) / np.maximum(guessed, 1)
    brevity = np.minimum(0.0, 1 - counts[:, 1] / np.maximum(counts[:, 0], 1))
    return np.where(found[:, 0] > 0, np.exp(np.log(precisions).mean(axis=1) + brevity), 0.0)


def _bleu(counts: np.ndarray) -> float:
    """BLEU-4 of many sentences together, with the smallest numbers that pycocoevalcap adds."""
    guessed, found = np.split(counts[2:], 2)
    ratio = (counts[0] + 1e-15) / (counts[1] + 1e-9)
    bleu = np.prod((found + 1e-15) / (guessed + 1e-9)) ** (1 / ORDERS)
    return float(bleu * np.exp(min(0.0, 1 - 1 / ratio)))

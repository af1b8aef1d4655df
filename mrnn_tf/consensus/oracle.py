"""What the reference captions say of every hypothesis: the upper bound of reranking.

It scores any choice of hypotheses at once, which is what tuning needs.
"""

import functools
from collections.abc import Iterable, Mapping

import numpy as np
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
from pycocoevalcap.bleu.bleu_scorer import BleuScorer, cook_refs, cook_test

from mrnn_tf.consensus.neighbours import Near
from mrnn_tf.consensus.ngrams import ORDERS, Corpus
from mrnn_tf.consensus.reranking import Comparison, RerankSettings
from mrnn_tf.metrics.captions import CaptionLists, tokenize_lists
from mrnn_tf.metrics.coco import ImageId
from mrnn_tf.metrics.nbest import NBest


class Oracle:
    """Scores the hypotheses of images by their references.

    Args:
        references: the raw captions of every image; those without words do not count.
        hypotheses: the raw hypotheses of images that have references. Their ids are the same.

    Attributes:
        cider: CIDEr-D [N] of the hypotheses of an image, with the frequencies of the references;
            images without references or hypotheses are left out.
        bleu: BLEU-4 [N] of the hypotheses of an image, as nltk smooths it (its method 1).
    """

    def __init__(self, references: CaptionLists, hypotheses: CaptionLists):
        words = tokenize_lists(references)
        wanted = {image: list(filter(None, texts)) for image, texts in words.items() if any(texts)}
        given = tokenize_lists(hypotheses)
        given = {image: given[image] for image in given if image in wanted and given[image]}
        self.cider, self.bleu, self._cooked = {}, {}, {}
        if given:  # the references are the captions of the only neighbour
            numbers = {image: number for number, image in enumerate(wanted)}
            near = Near([[numbers[image]] for image in given], np.ones((len(given), 1)))
            n_best = {image: NBest(tuple(captions)) for image, captions in given.items()}
            compared = Comparison("cider", Corpus.of(wanted.values()))(n_best, near)
            settings = RerankSettings(k=1, m=max(map(len, wanted.values())))
            self.cider = compared.scores("cider", settings)
        smoothed = functools.partial(sentence_bleu, smoothing_function=SmoothingFunction().method1)
        for image, captions in given.items():
            words = [caption.split() for caption in wanted[image]]
            self.bleu[image] = np.array([smoothed(words, caption.split()) for caption in captions])
            cooked = cook_refs(wanted[image])
            self._cooked[image] = [cook_test(caption, cooked) for caption in captions]

    def overall(
        self, chosen: Mapping[ImageId, int], images: Iterable[ImageId] | None = None
    ) -> dict[str, float]:
        """BLEU-4 and CIDEr of one hypothesis an image, as `metrics.captions.evaluate` has them."""
        images = list(self.cider if images is None else images)
        scorer = BleuScorer(n=ORDERS)
        scorer.ctest = [self._cooked[image][chosen[image]] for image in images]
        bleu, _ = scorer.compute_score(option="closest", verbose=0)
        cider = np.mean([self.cider[image][chosen[image]] for image in images])
        return {"bleu_4": bleu[ORDERS - 1], "cider": float(cider)}

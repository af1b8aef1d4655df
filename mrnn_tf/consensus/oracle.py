"""What the reference captions say of every hypothesis: the upper bound of reranking.

It scores any choice of hypotheses at once, which is what tuning needs.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
from pycocoevalcap.bleu.bleu_scorer import BleuScorer, cook_refs, cook_test

from mrnn_tf.consensus.neighbours import Near
from mrnn_tf.consensus.ngrams import ORDERS, Corpus, tokenize_lists
from mrnn_tf.consensus.reranking import Comparison, RerankSettings
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

    def __init__(
        self,
        references: Mapping[ImageId, Sequence[str]],
        hypotheses: Mapping[ImageId, Sequence[str]],
    ):
        wanted = tokenize_lists(references)
        wanted = {image: list(filter(None, captions)) for image, captions in wanted.items()}
        wanted = {image: captions for image, captions in wanted.items() if captions}
        given = {
            image: captions
            for image, captions in tokenize_lists(hypotheses).items()
            if image in wanted and captions
        }
        self.cider = self._cider(wanted, given) if given else {}
        smoothed = SmoothingFunction().method1
        self.bleu, self._cooked = {}, {}
        for image, captions in given.items():
            words = [caption.split() for caption in wanted[image]]
            self.bleu[image] = np.array(
                [sentence_bleu(words, c.split(), smoothing_function=smoothed) for c in captions]
            )
            cooked = cook_refs(wanted[image])
            self._cooked[image] = [cook_test(caption, cooked) for caption in captions]

    @staticmethod
    def _cider(wanted, given):
        """The mean similarity to the references, which are the neighbours of their own image."""
        places = {image: place for place, image in enumerate(wanted)}
        n_best = {image: NBest(tuple(captions)) for image, captions in given.items()}
        near = Near([[places[image]] for image in given], np.ones((len(given), 1)))
        compared = Comparison("cider", Corpus.of(wanted.values()))(n_best, near)
        most = max(map(len, wanted.values()))
        return compared.scores("cider", RerankSettings(k=1, m=most))

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

"""Which features find better neighbours: those of the encoder, or those that the model refines."""

import dataclasses

import numpy as np

from mrnn_tf.config import NEIGHBOURS, ORIGINAL, REFINED, WHITENED, RerankSettings
from mrnn_tf.consensus.ngrams import Corpus
from mrnn_tf.consensus.reranking import Comparison
from mrnn_tf.errors import UserError
from mrnn_tf.metrics.nbest import NBest
from mrnn_tf.run import Run
from mrnn_tf.split import Split
from trainer.evaluation.rerank import find_neighbours

FEATURES = (ORIGINAL, REFINED, WHITENED)
_SHOWN, _EACH = 6, 5  # images to look at, and neighbours of each


@dataclasses.dataclass(frozen=True)
class Neighbourhoods:
    """The nearest training images by every kind of features.

    A neighbour is good where its captions say what the image's references say: by the mean CIDEr-D
    of the references and the captions of all neighbours.
    """

    figures: dict[str, dict[str, float]]  # features -> `agreement`, the mean of all images
    agreement: dict[str, dict[str, float]]  # features -> image id -> its own
    examples: list[tuple[str, dict[str, list[str]]]]  # an image; its neighbours by every feature


def compare_neighbours(
    run: Run, split: Split, training: Split, k: int = NEIGHBOURS
) -> Neighbourhoods:
    """Compares the k nearest training images by the features of the encoder and of the model.

    A model that does not refine features has those of the encoder alone.
    """
    captions = dict(zip(split.ids, split.captions, strict=True))
    references = {image: NBest(own) for image, own in captions.items() if any(own)}
    if not references:
        raise UserError(f"The split {split.source.split!r} holds no captions to compare.")
    kinds = FEATURES if "multimodal" in run.network.model.wiring.image_to else (ORIGINAL,)
    compare = Comparison("cider", Corpus.of(training.captions))
    everything = RerankSettings(k=k, m=k * max(map(len, training.captions)))
    shown = [*references][:: max(1, len(references) // _SHOWN)][:_SHOWN]
    figures, agreement, examples = {}, {}, {image: {} for image in shown}
    for kind in kinds:
        near = find_neighbours(run, split, training, references, k, kind)
        alike = near._replace(weights=(near.weights > 0).astype(np.float32))
        scores = compare(references, alike).scores("cider", everything)
        agreement[kind] = {image: float(values.mean()) for image, values in scores.items()}
        figures[kind] = {"agreement": float(np.mean([*agreement[kind].values()])), "k": k}
        rows = dict(zip(references, near.images, strict=True))
        for image in shown:
            examples[image][kind] = [training.ids[row] for row in rows[image][:_EACH] if row >= 0]
    return Neighbourhoods(figures, agreement, list(examples.items()))

"""What reranking makes of the n-best lists of a split."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from mrnn_tf.consensus import reranking
from mrnn_tf.consensus.neighbours import MISSING, Near, Neighbourhood
from mrnn_tf.consensus.ngrams import Corpus
from mrnn_tf.consensus.oracle import Oracle
from mrnn_tf.consensus.reranking import COMBINED, MBR, Comparison, RerankSettings, order
from mrnn_tf.consensus.similarity import SIMILARITIES
from mrnn_tf.errors import UserError
from mrnn_tf.metrics import captions as metrics
from mrnn_tf.metrics.coco import ImageId
from mrnn_tf.metrics.nbest import NBest
from mrnn_tf.run import Run
from mrnn_tf.split import Split

# The rows of the table, and the methods behind them.
TOP_1 = "top-1"
ROWS = {MBR: "mbr", "bleu": "neighbours-bleu", "cider": "neighbours-cider", COMBINED: "combined"}
# Whitened features are of the refined ones, where the model refines features.
FEATURES = ("whitened", "refined", "original")
_SHOWN = "cider"  # the method whose changes are shown, as in the paper
_BATCH_SIZE = 1024
_OF_A_KIND = 2  # images shown that gain most, that gain little, that lose most


@dataclasses.dataclass(frozen=True)
class RankChange:
    """The hypotheses of an image before and after reranking.

    Attributes:
        image_id: str.
        captions: the hypotheses, best first by the model.
        order: places in `captions`, best first by consensus.
        scores: the consensus of every hypothesis, as in `captions`.
        gain: in CIDEr, of the first caption; `None` without references.
    """

    image_id: str
    captions: tuple[str, ...]
    order: tuple[int, ...]
    scores: tuple[float, ...]
    gain: float | None = None


@dataclasses.dataclass(frozen=True)
class Reranking:
    """What reranking makes of a split.

    Attributes:
        figures: row -> metric -> value; empty where the images have no references.
        changes: a few images whose first caption changed.
    """

    figures: dict[str, dict[str, float]]
    changes: list[RankChange]


def rerank_split(
    run: Run,
    split: Split,
    training: Split,
    n_best: Mapping[str, NBest],
    settings: RerankSettings = RerankSettings(),  # noqa: B008 (frozen)
) -> Reranking:
    """Chooses among the n-best captions of a split by every method.

    Args:
        run: `Run`. Its refined features tell which images are near.
        split: the images that were captioned.
        training: the images among which the neighbours are.
        n_best: the hypotheses of images of the split. Images without any are left out.
        settings: of the methods.
    """
    n_best = {image: hypotheses for image, hypotheses in n_best.items() if hypotheses.captions}
    corpus = training_corpus(training)
    near = find_neighbours(run, split, training, n_best, settings.k)
    compared = {name: Comparison(name, corpus)(n_best, near) for name in SIMILARITIES}
    scores = {
        method: compared[reranking.similarity_of(method)].scores(method, settings)
        for method in ROWS
    }
    captions = dict(zip(split.ids, split.captions, strict=True))
    references = {image: captions[image] for image in n_best if any(captions[image])}
    oracle = Oracle(references, {image: n_best[image].captions for image in references})
    figures = _figures(n_best, scores, references, oracle) if oracle.cider else {}
    return Reranking(figures, _changes(n_best, scores[_SHOWN], oracle.cider))


def training_corpus(training: Split) -> Corpus:
    """The n-grams of the training captions."""
    if not training.has_captions:
        raise UserError(f"The training images of {training.source.directory} have no captions.")
    return Corpus.of(training.captions)


def find_neighbours(
    run: Run,
    split: Split,
    training: Split,
    images: Iterable[ImageId],
    k: int,
    features: str = FEATURES[0],
) -> Near:
    """The k nearest training images of some images of a split, an image itself left out."""
    if features not in FEATURES:
        raise UserError(f"`features` must be one of {', '.join(FEATURES)}, not {features!r}.")
    model, is_whitened = run.network.model, features == "whitened"
    refine = features == "refined" or (is_whitened and "multimodal" in model.wiring.image_to)

    def refined(values: np.ndarray) -> np.ndarray:
        if not refine:
            return values
        batches = np.array_split(values, range(_BATCH_SIZE, len(values), _BATCH_SIZE))
        return np.concatenate([model.refined(batch).numpy() for batch in batches])

    rows = {image_id: row for row, image_id in enumerate(split.ids)}
    numbers = {image_id: number for number, image_id in enumerate(training.ids)}
    own = np.array([numbers.get(str(image), MISSING - 1) for image in images], np.int64)
    wanted = np.array([rows[str(image)] for image in images], np.int64)
    neighbourhood = Neighbourhood(refined(training.features), is_whitened)
    return neighbourhood.nearest(refined(split.features[wanted]), k, own)


def _figures(
    n_best: Mapping[str, NBest],
    scores: Mapping[str, Mapping[str, np.ndarray]],
    references: Mapping[str, Sequence[str]],
    oracle: Oracle,
) -> dict[str, dict[str, float]]:
    rows = {ROWS[method]: values for method, values in scores.items()}
    rows |= {"oracle_bleu": oracle.bleu, "oracle_cider": oracle.cider}
    chosen = {TOP_1: dict.fromkeys(oracle.cider, 0)}
    for row, values in rows.items():
        chosen[row] = {image: order(values[image])[0] for image in oracle.cider}
    references = {image: references[image] for image in oracle.cider}
    return {
        row: metrics.evaluate(
            references,
            {image: n_best[image].captions[best] for image, best in choices.items()},
            meteor=False,
        ).overall
        for row, choices in chosen.items()
    }


def _changes(
    n_best: Mapping[str, NBest],
    scores: Mapping[str, np.ndarray],
    cider: Mapping[str, np.ndarray],
) -> list[RankChange]:
    """A few images whose first caption changed: most gained, little changed, most lost."""
    orders = {image: order(values) for image, values in scores.items()}
    shown = [image for image in n_best if orders[image][0] != 0]
    gains = {
        image: float(cider[image][orders[image][0]] - cider[image][0])
        for image in shown
        if image in cider
    }
    if cider:
        by_gain = sorted(gains, key=lambda image: -gains[image])
        middle = max(0, (len(by_gain) - _OF_A_KIND) // 2)
        kinds = slice(_OF_A_KIND), slice(middle, middle + _OF_A_KIND), slice(-_OF_A_KIND, None)
        shown = list(dict.fromkeys(image for kind in kinds for image in by_gain[kind]))
    return [
        RankChange(
            image,
            n_best[image].captions,
            tuple(orders[image]),
            tuple(scores[image].tolist()),
            gains.get(image),
        )
        for image in shown[: 3 * _OF_A_KIND]
    ]

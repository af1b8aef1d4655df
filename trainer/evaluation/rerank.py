"""What reranking makes of the n-best lists of a split."""

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np

from mrnn_tf.config import COMBINED, MBR, NEIGHBOUR_FEATURES, REFINED, WHITENED, RerankSettings
from mrnn_tf.consensus import neighbours, reranking
from mrnn_tf.consensus.ngrams import Corpus
from mrnn_tf.consensus.oracle import Oracle
from mrnn_tf.consensus.reranking import Comparison, order
from mrnn_tf.consensus.similarity import SIMILARITIES
from mrnn_tf.errors import UserError
from mrnn_tf.metrics import captions as metrics
from mrnn_tf.metrics.nbest import NBest
from mrnn_tf.run import Run
from mrnn_tf.split import Split

# The rows of the table, and the methods behind them.
TOP_1 = "top-1"
ROWS = {MBR: "mbr", "bleu": "neighbours-bleu", "cider": "neighbours-cider", COMBINED: "combined"}
# The same with the paper's neighbours: by refined features as they are, all of one weight.
PAPER_ROWS = {"bleu": "nnref-bleu", "cider": "nnref-cider"}
_BATCH_SIZE = 1024
_OF_A_KIND = 2  # images shown that gain most, that gain little, that lose most

ByImage = Mapping[str, np.ndarray]  # values [N] of the hypotheses of every image


@dataclasses.dataclass(frozen=True)
class RankChange:
    """The hypotheses of an image before and after reranking."""

    image_id: str
    captions: tuple[str, ...]  # best first by the model
    order: tuple[int, ...]  # places in `captions`, best first by consensus
    scores: tuple[float, ...]  # the consensus of every hypothesis, as in `captions`
    gain: float | None = None  # in CIDEr, of the first caption; `None` without references


@dataclasses.dataclass(frozen=True)
class Reranking:
    """What reranking makes of a split."""

    figures: dict[str, dict[str, float]]  # row -> metric -> value; empty without references
    changes: list[RankChange]  # a few images whose first caption changed
    captions: dict[str, dict[str, str]]  # row -> image id -> the caption chosen; as `figures`


def rerank_split(
    run: Run,
    split: Split,
    training: Split,
    n_best: Mapping[str, NBest],
    settings: RerankSettings,
    meteor: bool = False,
) -> Reranking:
    """Chooses among the n-best captions of a split by every method.

    The neighbours are training images. Images without hypotheses are left out.
    """
    n_best = {image: hypotheses for image, hypotheses in n_best.items() if hypotheses.captions}
    near = find_neighbours(run, split, training, n_best, settings.k)
    corpus = Corpus.of(training.captions)
    comparisons = {name: Comparison(name, corpus) for name in SIMILARITIES}
    compared = {name: comparison(n_best, near) for name, comparison in comparisons.items()}
    scores = {
        row: compared[reranking.similarity_of(method)].scores(method, settings)
        for method, row in ROWS.items()
    }
    if "multimodal" in run.network.model.wiring.image_to:  # or nothing is refined
        near = find_neighbours(run, split, training, n_best, settings.k, REFINED)
        for method, row in PAPER_ROWS.items():
            scores[row] = comparisons[method](n_best, near).scores(method, settings)
    captions = dict(zip(split.ids, split.captions, strict=True))
    references = {image: captions[image] for image in n_best if any(captions[image])}
    oracle = Oracle(references, {image: n_best[image].captions for image in references})
    changes = _changes(n_best, scores[ROWS["cider"]], oracle.cider)  # as in the paper
    if not oracle.cider:
        return Reranking({}, changes, {})
    scores = {TOP_1: dict.fromkeys(n_best, np.zeros(1)), **scores}
    scores |= {"oracle_bleu": oracle.bleu, "oracle_cider": oracle.cider}
    references = {image: references[image] for image in oracle.cider}
    figures, chosen = {}, {}
    for row, values in scores.items():
        chosen[row] = {i: n_best[i].captions[order(values[i])[0]] for i in references}
        figures[row] = metrics.evaluate(references, chosen[row], meteor=meteor).overall
    return Reranking(figures, changes, chosen)


def find_neighbours(
    run: Run,
    split: Split,
    training: Split,
    images: Iterable,
    k: int,
    features: str = WHITENED,
) -> neighbours.Near:
    """The k nearest training images of some images of a split, an image itself left out."""
    if features not in NEIGHBOUR_FEATURES:
        raise UserError(
            f"`features` must be one of {', '.join(NEIGHBOUR_FEATURES)}, not {features!r}."
        )
    if not training.has_captions:
        raise UserError(f"The training images of {training.source.directory} have no captions.")
    model, is_whitened = run.network.model, features == WHITENED
    refine = features == REFINED or (is_whitened and "multimodal" in model.wiring.image_to)

    def refined(values: np.ndarray) -> np.ndarray:
        if not refine:
            return model.comparable(values)
        batches = np.array_split(values, range(_BATCH_SIZE, len(values), _BATCH_SIZE))
        return np.concatenate([model.refined(batch).numpy() for batch in batches])

    rows = {image_id: row for row, image_id in enumerate(split.ids)}
    numbers = {image_id: number for number, image_id in enumerate(training.ids)}
    own = np.array([numbers.get(str(image), neighbours.MISSING - 1) for image in images], np.int64)
    wanted = np.array([rows[str(image)] for image in images], np.int64)
    neighbourhood = neighbours.Neighbourhood(refined(training.features), is_whitened)
    return neighbourhood.nearest(refined(split.features[wanted]), k, own)


def _changes(n_best: Mapping[str, NBest], scores: ByImage, cider: ByImage) -> list[RankChange]:
    """A few images whose first caption changed: most gained, little changed, most lost."""
    changes = []
    for image, hypotheses in n_best.items():
        after = order(scores[image])
        gain = float(cider[image][after[0]] - cider[image][0]) if image in cider else None
        if after[0] != 0 and (gain is not None or not cider):
            consensus = tuple(scores[image].tolist())
            changes.append(RankChange(image, hypotheses.captions, tuple(after), consensus, gain))
    if cider:
        changes.sort(key=lambda change: -change.gain)
        middle = max(0, (len(changes) - _OF_A_KIND) // 2)
        kinds = slice(_OF_A_KIND), slice(middle, middle + _OF_A_KIND), slice(-_OF_A_KIND, None)
        changes = list(dict.fromkeys(change for kind in kinds for change in changes[kind]))
    return changes[: 3 * _OF_A_KIND]

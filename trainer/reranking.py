"""What reranking makes of the n-best lists of an evaluation: a table and a figure."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from mrnn_tf.consensus.oracle import Oracle
from mrnn_tf.consensus.reranking import Compared, order
from mrnn_tf.data import pipeline
from mrnn_tf.metrics import captions as metrics
from mrnn_tf.metrics.nbest import NBest
from mrnn_tf.run import Run
from trainer import methods, ranks, tables
from trainer.captioning import Captioned
from trainer.methods import Settings
from trainer.neighbourhood import FEATURES, Neighbourhood

# The rows of the table, and the methods behind them.
TOP_1 = "top-1"
ROWS = {
    methods.MBR: "mbr",
    "bleu": "neighbours-bleu",
    "cider": "neighbours-cider",
    methods.COMBINED: "combined",
}
_SHOWN = "cider"  # the method of the figure, as in the paper
_PAPER = (
    ("m-RNN-shared", ".686 .511 .375 .280 .842 .500 .228"),
    ("m-RNN-shared-NNref-BLEU", ".718 .550 .409 .305 .909 .519 .235"),
    ("m-RNN-shared-NNref-CIDEr", ".714 .543 .406 .304 .938 .519 .239"),
    ("m-RNN-shared-NNref-BLEU-Oracle", ".792 .663 .543 .443 1.235 .602 .287"),
    ("m-RNN-shared-NNref-CIDEr-Oracle", ".784 .648 .529 .430 1.272 .593 .287"),
)
_OF_A_KIND = 2  # images in the figure that gain most, that gain little, that lose most


@dataclasses.dataclass(frozen=True)
class Reranked:
    """What reranking makes of a split.

    Attributes:
        rows: row -> metric -> value; empty where the images have no references.
        heading: of the section in a report.
        section: the HTML of that section.
    """

    rows: dict[str, dict[str, float]]
    heading: str
    section: str


def rerank(
    run: Run,
    reference_data: str,
    source: pipeline.Source,
    captioned: Sequence[Captioned],
    settings: Settings = Settings(),  # noqa: B008 (frozen)
    features: str = FEATURES[0],
) -> Reranked:
    """Chooses among the n-best captions of a split by every method.

    Args:
        run: `Run`. Its features tell which images are near.
        reference_data: str. Records with the training split, which has the neighbours.
        source: the split that was captioned.
        captioned: its images. Those without captions are left out.
        settings: of the methods.
        features: str. What neighbours are near by.
    """
    images = {image.image_id: image for image in captioned if image.n_best.captions}
    n_best = {
        image_id: NBest(image.n_best.captions, image.n_best.log_probs)
        for image_id, image in images.items()
    }
    training = Neighbourhood(run, reference_data, features)
    near = training.nearest(source, settings.k)
    scores, compared = {}, {}
    for method in ROWS:
        similarity = methods.similarity_of(method)
        if similarity not in compared:
            compared[similarity] = methods.compare(similarity, n_best, training.corpus, near)
        scores[method] = _scores(method, compared[similarity], n_best, settings)
    references = {key: image.references for key, image in images.items() if any(image.references)}
    oracle = None
    if references:
        hypotheses = {image_id: n_best[image_id].captions for image_id in references}
        oracle = Oracle(references, hypotheses)
    rows = _rows(n_best, scores, references, oracle) if oracle and oracle.cider else {}
    figure = ranks.show(_ranks(source, n_best, scores[_SHOWN], oracle))
    facts = (
        f"k {settings.k}, {features} features, {len(training.corpus.images) - 1:,} training images"
    )
    return Reranked(rows, "Consensus reranking", _table(rows, facts) + _explained(figure))


def _scores(
    method: str,
    compared: Mapping[str, Compared],
    n_best: Mapping[str, NBest],
    settings: Settings,
) -> dict[str, np.ndarray]:
    return {
        image_id: methods.scores(method, compared[image_id], some, settings)
        for image_id, some in n_best.items()
    }


def _rows(
    n_best: Mapping[str, NBest],
    scores: Mapping[str, Mapping[str, np.ndarray]],
    references: Mapping[str, Sequence[str]],
    oracle: Oracle,
) -> dict[str, dict[str, float]]:
    chosen = {TOP_1: dict.fromkeys(oracle.cider, 0)}
    named = {ROWS[method]: found for method, found in scores.items()}
    for row, found in {**named, "oracle_bleu": oracle.bleu, "oracle_cider": oracle.cider}.items():
        chosen[row] = {image_id: order(found[image_id])[0] for image_id in oracle.cider}
    references = {image_id: references[image_id] for image_id in oracle.cider}
    return {
        row: metrics.evaluate(
            references,
            {image_id: n_best[image_id].captions[place] for image_id, place in places.items()},
            meteor=False,
        ).overall
        for row, places in chosen.items()
    }


def _ranks(
    source: pipeline.Source,
    n_best: Mapping[str, NBest],
    scores: Mapping[str, np.ndarray],
    oracle: Oracle | None,
) -> list[ranks.Ranks]:
    """A few images whose first caption changed: most gained, little changed, most lost."""
    changed = [image_id for image_id in n_best if order(scores[image_id])[0] != 0]
    told = {}
    if oracle:
        gains = {
            image_id: oracle.cider[image_id][order(scores[image_id])[0]] - oracle.cider[image_id][0]
            for image_id in changed
            if image_id in oracle.cider
        }
        by_gain = sorted(gains, key=lambda image_id: -gains[image_id])
        middle = max(0, (len(by_gain) - _OF_A_KIND) // 2)
        changed = [
            *by_gain[:_OF_A_KIND],
            *by_gain[middle : middle + _OF_A_KIND],
            *by_gain[-_OF_A_KIND:],
        ]
        told = {image_id: f"CIDEr {gains[image_id]:+.2f}" for image_id in changed}
    shown = list(dict.fromkeys(changed))[: 3 * _OF_A_KIND]
    pictures = pipeline.pictures(source, set(shown))
    return [
        ranks.Ranks(
            image_id,
            pictures.get(image_id),
            n_best[image_id].captions,
            tuple(order(scores[image_id])),
            tuple(scores[image_id].tolist()),
            told.get(image_id, ""),
        )
        for image_id in shown
    ]


def _table(rows: Mapping[str, Mapping[str, float]], facts: str) -> str:
    if not rows:
        return ""
    ours = "".join(
        tables.row(
            "own", name, [tables.share(row[key]) if key in row else None for key in tables.METRICS]
        )
        for name, row in rows.items()
    )
    theirs = "".join(
        tables.row("other", name, values.split(), "MS COCO val") for name, values in _PAPER
    )
    groups = [(f"This run, {facts}", ours), (tables.PAPER, theirs)]
    return tables.table(list(tables.METRICS.values()), groups)


def _explained(figure: str) -> str:
    if not figure:
        return ""
    return (
        '<p class="remark">The rank of the hypotheses before and after reranking by the '
        "captions of near training images (CIDEr), with their consensus: images that gain most by "
        f"it, images that change little, and images that lose most.</p>{figure}"
    )

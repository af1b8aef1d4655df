"""What the figures of the paper show: curves, neighbours, ranks, sentences, novel captions."""

import dataclasses
from typing import Any

import numpy as np

from mrnn_tf import schema
from mrnn_tf.config import ORIGINAL, REFINED
from mrnn_tf.data import pipeline
from trainer.evaluate import MATCHES
from trainer.evaluation.captions import GREEDY
from trainer.evaluation.retrieval import IMAGE_TO_TEXT
from trainer.experiments.results import BEAM, DatasetResults, RunResult
from trainer.experiments.rows import ROWS
from trainer.options import CAPTIONS, NEAREST, RERANK, RETRIEVAL
from trainer.report.plots import Points

_FIRST = 50  # ranks that a recall curve shows
_RETRIEVED = 2  # sentences shown of an image, as in the paper's first figure
_PERCENT = (1, 2, 5, 10, 20, 50)
_GRADIENTS = {"mrnn": "ReLU", "sigmoid": "sigmoid", "scaled_tanh": "scaled tanh"}


@dataclasses.dataclass(frozen=True)
class DescribedImage:
    """What the model says of an image, and the first sentences that it retrieves for it."""

    image_id: str
    generated: str
    retrieved: list[tuple[str, bool]]  # sentences, and whether they are the image's own


@dataclasses.dataclass(frozen=True)
class Figures:
    """The figures of a dataset; what was not measured is empty."""

    dataset: str
    made_by: str  # the run that they are of
    recalls: dict[str, Points]  # row -> (K, R@K)
    matches: dict[str, Points]  # direction -> (percent retrieved, mean share of matches)
    gradients: dict[str, Points]  # activation -> (step, highest gradient norm)
    neighbours: list[tuple[str, dict[str, list[str]]]]
    changes: list[dict[str, Any]]  # hypotheses before and after reranking
    described: list[DescribedImage]
    novel: dict[str, float]  # row and decoding -> share of captions that are no training captions
    pictures: dict[str, bytes]

    @property
    def matches_shown(self) -> dict[str, dict[int, float]]:
        """The curves of matches at a few percentages."""
        return {
            direction: {x: dict(points)[float(x)] for x in _PERCENT}
            for direction, points in self.matches.items()
        }


def make(results: DatasetResults) -> Figures | None:
    """The figures of the first run that ranks; `None` where there is none."""
    ranked = [run for runs in results.rows.values() for run in runs if RETRIEVAL in run.scores]
    if not ranked:
        return None
    run = ranked[0]
    searches = run.details[RETRIEVAL]["searches"][IMAGE_TO_TEXT]
    generated = run.captions(BEAM)
    described = [
        DescribedImage(
            image, generated[image], [(text, right) for text, _, right in found[:_RETRIEVED]]
        )
        for image, found in searches
    ]
    neighbours = [
        (image, {kind: near[kind] for kind in (ORIGINAL, REFINED) if kind in near})
        for image, near in run.details.get(NEAREST, {}).get("examples", [])
    ]
    changes = run.details.get(RERANK, {}).get("changes", [])
    shown = {one.image_id for one in described} | {change["image_id"] for change in changes}
    shown |= {image for image, _ in neighbours}
    near = {one for _, kinds in neighbours for found in kinds.values() for one in found}
    return Figures(
        dataset=results.name,
        made_by=str(run.planned),
        recalls={
            row: _recall_curve(ranks) for row, ranks in run.details[RETRIEVAL]["ranks"].items()
        },
        matches={way: [tuple(point) for point in points]
                 for way, points in run.scores[RETRIEVAL][MATCHES].items()},
        gradients={
            label: runs[0].gradient_norms
            for row, label in _GRADIENTS.items()
            if (runs := results.get(row))
        },
        neighbours=neighbours,
        changes=changes,
        described=described,
        novel=_novel(results),
        pictures=_pictures(run, shown, near),
    )  # fmt: skip


def _recall_curve(ranks: list[int]) -> Points:
    values = np.array(ranks)
    return [(k, 100.0 * float((values <= k).mean())) for k in range(1, _FIRST + 1)]


def _novel(results: DatasetResults) -> dict[str, float]:
    shares = {}
    for row, runs in results.rows.items():
        for decoding in (GREEDY, BEAM):
            values = [run.scores[CAPTIONS].get(decoding, {}).get("novel") for run in runs]
            if values and None not in values:
                shares[f"{ROWS[row].label}, {decoding}"] = float(np.mean(values))
    return shares


def _pictures(run: RunResult, shown: set[str], near: set[str]) -> dict[str, bytes]:
    """The pictures of some images of the split and of training, as far as there are any."""
    data, split = run.planned.data, run.planned.options.split
    found = {name: image for name, image in pipeline.pictures(data, split) if name in shown}
    if near:
        training = pipeline.pictures(data, schema.TRAIN)
        found |= {name: image for name, image in training if name in near}
    return found

"""Chooses k, m and the weights of consensus reranking by captions that people wrote."""

import dataclasses
import html
import itertools
from collections.abc import Mapping, Sequence

from mrnn_tf.consensus.oracle import Oracle
from mrnn_tf.consensus.reranking import Compared, order
from mrnn_tf.metrics.coco import ImageId
from mrnn_tf.metrics.nbest import NBest
from trainer import methods
from trainer.methods import Settings

KS = (10, 20, 40, 60, 100)
MS = (25, 50, 75, 125, 175, 250, 500)
WEIGHTS = (0.0, 0.02, 0.05, 0.1, 0.2)
LOG_PROBS = (0.0, 0.05, 0.1, 0.2, 0.4)
_CELL, _MARGIN = (92, 46), (76, 70)


@dataclasses.dataclass(frozen=True)
class Grid:
    """The scores of all settings that differ in two fields.

    Attributes:
        down, across: names of fields of `Settings`.
        metric: what the best setting is best by.
        cells: the settings and their `bleu_4` and `cider` on all images, rows first.
        best: the settings to use.
        validated: the scores where each half of the images has the settings best on the other, as
            far as the two fields go.
    """

    down: str
    across: str
    metric: str
    cells: tuple[tuple[Settings, dict[str, float]], ...]
    best: Settings
    validated: dict[str, float]

    def to_json(self) -> dict:
        cells = [{**dataclasses.asdict(each), **values} for each, values in self.cells]
        best = dataclasses.asdict(self.best)
        return {"metric": self.metric, "best": best, "validated": self.validated, "cells": cells}


def tune(
    method: str,
    n_best: Mapping[ImageId, NBest],
    compared: Mapping[ImageId, Compared],
    oracle: Oracle,
    start: Settings,
) -> list[Grid]:
    """Grids of k and m, and for `combined` then of its two weights.

    The images that the oracle cannot score are left out. Neighbours beyond the compared ones are
    not there: a larger k changes nothing.
    """
    metric = "bleu_4" if "bleu" in method else "cider"
    first = "cider" if method == methods.COMBINED else method

    def scored(of: str, settings: Settings) -> dict[ImageId, int]:
        return {
            image: order(methods.scores(of, compared[image], n_best[image], settings))[0]
            for image in oracle.cider
        }

    def grid(of: str, start: Settings, **fields: Sequence) -> Grid:
        every = [
            dataclasses.replace(start, **dict(zip(fields, values, strict=True)))
            for values in itertools.product(*fields.values())
        ]
        return _grid(tuple(fields), metric, {each: scored(of, each) for each in every}, oracle)

    grids = [grid(first, start, k=KS, m=MS)]
    if method == methods.COMBINED:
        has_log_probs = all(n_best[image].log_probs is not None for image in oracle.cider)
        log_probs = LOG_PROBS if has_log_probs else (0.0,)
        grids.append(grid(method, grids[0].best, weight=WEIGHTS, log_prob=log_probs))
    return grids


def _grid(
    fields: tuple[str, str],
    metric: str,
    chosen: dict[Settings, dict[ImageId, int]],
    oracle: Oracle,
) -> Grid:
    images = list(oracle.cider)
    halves = [images[0::2], images[1::2]]

    def best(some: list[ImageId]) -> Settings:
        return max(chosen, key=lambda each: oracle.overall(chosen[each], some)[metric])

    validated = {}
    for here, there in zip(halves, reversed(halves), strict=True):
        if here and there:
            choice = chosen[best(there)]
            validated |= {image: choice[image] for image in here}
    cells = tuple((each, oracle.overall(choice)) for each, choice in chosen.items())
    return Grid(*fields, metric, cells, best(images), oracle.overall(validated or cells, validated))


def plot(grids: Sequence[Grid], title: str) -> str:
    """The grids as an SVG picture, one below the other: BLEU-4 and CIDEr of every setting."""
    drawn, top, width = [], 0, 0
    for grid in grids:
        body, size = _drawn(grid)
        drawn.append(f'<g transform="translate(0 {top + 40})">{body}</g>')
        top, width = top + size[1], max(width, size[0])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top + 40}" '
        'font-family="system-ui, sans-serif" font-size="13" text-anchor="middle">'
        f'<rect width="100%" height="100%" fill="#fff"/><text x="{width / 2}" y="24" '
        f'font-size="16">{html.escape(title)}</text>{"".join(drawn)}</svg>\n'
    )


def _drawn(grid: Grid) -> tuple[str, tuple[int, int]]:
    rows = list(dict.fromkeys(getattr(each, grid.down) for each, _ in grid.cells))
    columns = list(dict.fromkeys(getattr(each, grid.across) for each, _ in grid.cells))
    (wide, high), (left, above) = _CELL, _MARGIN
    values = [scores[grid.metric] for _, scores in grid.cells]
    low, spread = min(values), max(values) - min(values) or 1.0
    marks = [
        f'<text x="{left + (i + 0.5) * wide}" y="{above - 10}">{grid.across} {value:g}</text>'
        for i, value in enumerate(columns)
    ]
    marks += [
        f'<text x="{left / 2}" y="{above + (i + 0.6) * high}">{grid.down} {value:g}</text>'
        for i, value in enumerate(rows)
    ]
    for settings, scores in grid.cells:
        x = left + columns.index(getattr(settings, grid.across)) * wide
        y = above + rows.index(getattr(settings, grid.down)) * high
        shade = 0.05 + 0.55 * (scores[grid.metric] - low) / spread
        edge = ' stroke="#b4622a" stroke-width="3"' if settings == grid.best else ""
        marks.append(
            f'<rect x="{x + 2}" y="{y + 2}" width="{wide - 4}" height="{high - 4}" fill="#0b6e69" '
            f'fill-opacity="{shade:.3f}"{edge}/>'
            f'<text x="{x + wide / 2}" y="{y + 20}">B4 {scores["bleu_4"]:.4f}</text>'
            f'<text x="{x + wide / 2}" y="{y + 36}">C {scores["cider"]:.4f}</text>'
        )
    told = ", ".join(f"{name} {value:.4f}" for name, value in grid.validated.items())
    size = left + len(columns) * wide + 12, above + len(rows) * high + 12
    marks.append(
        f'<text x="{size[0] / 2}" y="34">best by {grid.metric}; cross-validated {told}</text>'
    )
    return "".join(marks), size

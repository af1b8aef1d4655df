"""Chooses k, m and the weights of consensus reranking by reference captions."""

import dataclasses
import html
import itertools
from collections.abc import Sequence

from mrnn_tf.consensus.oracle import Oracle
from mrnn_tf.consensus.reranking import COMBINED, Compared, RerankSettings, order
from mrnn_tf.metrics.coco import ImageId

KS = (10, 20, 40, 60, 100)
MS = (25, 50, 75, 125, 175, 250, 500)
WEIGHTS = (0.0, 0.02, 0.05, 0.1, 0.2)
LOG_PROBS = (0.0, 0.05, 0.1, 0.2, 0.4)
_WIDE, _HIGH, _LEFT, _ABOVE = 92, 46, 76, 70  # of a cell, and the margins of a grid


@dataclasses.dataclass(frozen=True)
class Grid:
    """The scores of all settings that differ in two fields.

    Attributes:
        down, across: names of fields of `RerankSettings`.
        metric: what the best setting is best by.
        cells: the settings and their `bleu_4` and `cider` on all images, rows first.
        best: the settings to use.
        validated: the scores where each half of the images has the settings best on the other, as
            far as the two fields go.
    """

    down: str
    across: str
    metric: str
    cells: tuple[tuple[RerankSettings, dict[str, float]], ...]
    best: RerankSettings
    validated: dict[str, float]

    def to_json(self) -> dict:
        cells = [{**dataclasses.asdict(settings), **scores} for settings, scores in self.cells]
        best = dataclasses.asdict(self.best)
        return {"metric": self.metric, "best": best, "validated": self.validated, "cells": cells}


def tune(method: str, compared: Compared, oracle: Oracle, start: RerankSettings) -> list[Grid]:
    """Grids of k and m, and for `combined` then of its two weights.

    The images that the oracle cannot score are left out. Only compared neighbours exist: a larger k
    changes nothing.
    """
    metric = "bleu_4" if "bleu" in method else "cider"

    def grid(method: str, start: RerankSettings, **fields: Sequence) -> Grid:
        chosen = {}
        for values in itertools.product(*fields.values()):
            settings = dataclasses.replace(start, **dict(zip(fields, values, strict=True)))
            scores = compared.scores(method, settings)
            chosen[settings] = {image: order(scores[image])[0] for image in oracle.cider}
        return _grid(tuple(fields), metric, chosen, oracle)

    grids = [grid("cider" if method == COMBINED else method, start, k=KS, m=MS)]
    if method == COMBINED:
        has_log_probs = all(compared.n_best[i].log_probs is not None for i in oracle.cider)
        log_probs = LOG_PROBS if has_log_probs else (0.0,)
        grids.append(grid(method, grids[0].best, weight=WEIGHTS, log_prob=log_probs))
    return grids


def _grid(
    fields: tuple[str, str],
    metric: str,
    chosen: dict[RerankSettings, dict[ImageId, int]],
    oracle: Oracle,
) -> Grid:
    images = list(oracle.cider)
    halves = [images[0::2], images[1::2]]

    def best(part: list[ImageId]) -> RerankSettings:
        return max(chosen, key=lambda settings: oracle.overall(chosen[settings], part)[metric])

    validated = {}
    for half, other in zip(halves, reversed(halves), strict=True):
        if half and other:
            choice = chosen[best(other)]
            validated |= {image: choice[image] for image in half}
    cells = tuple((settings, oracle.overall(choice)) for settings, choice in chosen.items())
    best_of_all = best(images)
    return Grid(
        *fields, metric, cells, best_of_all, oracle.overall(validated or chosen[best_of_all])
    )


def heat_map(grids: Sequence[Grid], title: str) -> str:
    """The grids as an SVG picture, one below the other: BLEU-4 and CIDEr of every setting."""
    marks, top, width = [], 40, 0
    for grid in grids:
        rows, columns = (
            list(dict.fromkeys(getattr(settings, field) for settings, _ in grid.cells))
            for field in (grid.down, grid.across)
        )
        values = [scores[grid.metric] for _, scores in grid.cells]
        low, spread = min(values), max(values) - min(values) or 1.0
        told = ", ".join(f"{name} {value:.4f}" for name, value in grid.validated.items())
        labels = [
            (_LEFT + len(columns) * _WIDE / 2, 34, f"best by {grid.metric}; cross-validated {told}")
        ]
        labels += [
            (_LEFT + (i + 0.5) * _WIDE, _ABOVE - 10, f"{grid.across} {v:g}")
            for i, v in enumerate(columns)
        ]
        labels += [
            (_LEFT / 2, _ABOVE + (i + 0.6) * _HIGH, f"{grid.down} {v:g}")
            for i, v in enumerate(rows)
        ]
        for settings, scores in grid.cells:
            x = _LEFT + columns.index(getattr(settings, grid.across)) * _WIDE
            y = _ABOVE + rows.index(getattr(settings, grid.down)) * _HIGH
            shade = 0.05 + 0.55 * (scores[grid.metric] - low) / spread
            edge = ' stroke="#b4622a" stroke-width="3"' if settings == grid.best else ""
            marks.append(
                f'<rect x="{x + 2}" y="{top + y + 2}" width="{_WIDE - 4}" height="{_HIGH - 4}" '
                f'fill="#0b6e69" fill-opacity="{shade:.3f}"{edge}/>'
            )
            labels.append((x + _WIDE / 2, y + 20, f"B4 {scores['bleu_4']:.4f}"))
            labels.append((x + _WIDE / 2, y + 36, f"C {scores['cider']:.4f}"))
        marks += [f'<text x="{x}" y="{top + y}">{label}</text>' for x, y, label in labels]
        top += _ABOVE + len(rows) * _HIGH + 12
        width = max(width, _LEFT + len(columns) * _WIDE + 12)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" '
        'font-family="system-ui, sans-serif" font-size="13" text-anchor="middle">'
        f'<rect width="100%" height="100%" fill="#fff"/><text x="{width / 2}" y="24" '
        f'font-size="16">{html.escape(title)}</text>{"".join(marks)}</svg>\n'
    )

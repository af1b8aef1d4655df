"""Chooses k, m and the weights of consensus reranking by reference captions."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

from mrnn_tf.consensus.oracle import Oracle
from mrnn_tf.consensus.reranking import COMBINED, Compared, RerankSettings, order
from mrnn_tf.metrics.coco import ImageId

KS = (10, 20, 40, 60, 100)
MS = (25, 50, 75, 125, 175, 250, 500)
WEIGHTS = (0.0, 0.02, 0.05, 0.1, 0.2)
LOG_PROBS = (0.0, 0.05, 0.1, 0.2, 0.4)


@dataclasses.dataclass(frozen=True)
class Grid:
    """The scores of all settings that differ in two fields."""

    fields: dict[str, Sequence[float]]  # the values of the field of the rows, then of the columns
    metric: str  # what the best settings are best by
    cells: list[tuple[RerankSettings, dict[str, float]]]  # `bleu_4`, `cider` on all images by rows
    best: RerankSettings  # the settings to use
    validated: dict[str, float]  # the scores where each half has the settings best on the other

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
    images = list(oracle.cider)
    halves = images[0::2], images[1::2]

    def grid(method: str, start: RerankSettings, **fields: Sequence[float]) -> Grid:
        chosen = {}
        for values in itertools.product(*fields.values()):
            settings = dataclasses.replace(start, **dict(zip(fields, values, strict=True)))
            scores = compared.scores(method, settings)
            chosen[settings] = {image: order(scores[image])[0] for image in images}

        def best_on(part: Iterable[ImageId]) -> RerankSettings:
            return max(chosen, key=lambda settings: oracle.overall(chosen[settings], part)[metric])

        best = best_on(images)
        validated = dict(chosen[best])
        if all(halves):
            for half, other in (halves, halves[::-1]):
                choice = chosen[best_on(other)]
                validated |= {image: choice[image] for image in half}
        cells = [(settings, oracle.overall(choice)) for settings, choice in chosen.items()]
        return Grid(fields, metric, cells, best, oracle.overall(validated))

    grids = [grid("cider" if method == COMBINED else method, start, k=KS, m=MS)]
    if method == COMBINED:
        has_log_probs = all(compared.n_best[i].log_probs is not None for i in images)
        log_probs = LOG_PROBS if has_log_probs else (0.0,)
        grids.append(grid(method, grids[0].best, weight=WEIGHTS, log_prob=log_probs))
    return grids

"""What the finished runs of a plan have measured, read back from their evaluations."""

import dataclasses
import functools
import os
import statistics
from collections.abc import Iterable

import numpy as np

from mrnn_tf import files, schema
from mrnn_tf.data import pipeline
from mrnn_tf.errors import UserError
from mrnn_tf.metrics import captions as metrics
from trainer.experiments.runs import PlannedRun
from trainer.experiments.significance import PerImage
from trainer.options import CAPTIONS, NEAREST, RERANK, RETRIEVAL, Decoding
from trainer.report import curves

BEAM = Decoding().headline  # the row of the captions by the default search


@dataclasses.dataclass(frozen=True)
class RunResult:
    """A finished run, with the figures and the details of its evaluation."""

    planned: PlannedRun
    scores: dict
    details: dict
    _ciders: dict[str, PerImage] = dataclasses.field(default_factory=dict, compare=False)

    @classmethod
    def read(cls, planned: PlannedRun) -> "RunResult":
        path = functools.partial(os.path.join, planned.report)
        scores = files.read_json(path(schema.SCORES_FILE), "the scores of an evaluation are wanted")
        details = files.read_json(path(schema.DETAILS_FILE), "what an evaluation found is wanted")
        return cls(planned, scores, details)

    def captions(self, decoding: str = BEAM) -> dict[str, str]:
        """The captions of the images by a search, or as chosen by a row of reranking."""
        for task in (CAPTIONS, RERANK):
            if decoding in self.details.get(task, {}).get("captions", {}):
                return self.details[task]["captions"][decoding]
        raise UserError(
            f"{self.planned.report} was evaluated without the captions of {decoding!r}, maybe by "
            "another version: remove it, and it is evaluated again."
        )

    @functools.cached_property
    def references(self) -> dict[str, list[str]]:
        """The reference captions of the images."""
        return dict(pipeline.captions_by_id(self.planned.data, self.planned.options.split))

    def bleu(self, order: int, decoding: str = BEAM) -> PerImage:
        """What BLEU of an order is made of, image by image."""
        return PerImage.of_captions(self.references, self.captions(decoding), order)

    def cider(self, decoding: str = BEAM) -> PerImage:
        """CIDEr of every image."""
        if decoding not in self._ciders:
            scores = metrics.evaluate(self.references, self.captions(decoding), meteor=False)
            values = [own["cider"] for own in scores.per_image.values()]
            self._ciders[decoding] = PerImage.of_values(values)
        return self._ciders[decoding]

    def recall(self, row: str, k: int) -> PerImage:
        """Whether the first right answer of every query is among the first k, in percent."""
        ranks = np.array(self.details[RETRIEVAL]["ranks"][row])
        return PerImage.of_values(100.0 * (ranks <= k))

    def agreement(self, features: str) -> PerImage:
        """How well the captions of an image's neighbours say what its references say."""
        return PerImage.of_values([*self.details[NEAREST]["agreement"][features].values()])

    @functools.cached_property
    def gradient_norms(self) -> list[tuple[int, float]]:
        """The highest norm of the gradient, before it is clipped, in the steps before a step."""
        logs = os.path.join(self.planned.folder, schema.LOG_DIR, "train")
        return curves.scalar(logs, "highest_gradient_norm")

    @property
    def gradient_peak(self) -> float | None:
        """The highest gradient norm to the median one, once the learning rate has risen."""
        rising = self.planned.settings[1].warmup_steps
        norms = [norm for step, norm in self.gradient_norms if step > rising]
        return max(norms) / statistics.median(norms) if norms else None

    @functools.cached_property
    def parameters(self) -> int:
        """How many values are trained, as the evaluation says."""
        text = self.scores["model"].rsplit(", ", 1)[-1]
        return int(text.split()[0].replace(",", "")) if text else 0


@dataclasses.dataclass(frozen=True)
class DatasetResults:
    """The finished runs on a dataset: by the name of their row, in the order of their seeds."""

    name: str
    rows: dict[str, list[RunResult]]
    missing: list[str]  # planned runs that are not finished

    def get(self, row: str) -> list[RunResult]:
        return self.rows.get(row, [])


def read(planned: Iterable[PlannedRun]) -> list[DatasetResults]:
    """The results of a plan, dataset by dataset."""
    found: dict[str, DatasetResults] = {}
    for one in planned:
        name = one.dataset.name
        dataset = found.setdefault(name, DatasetResults(name, {}, []))
        if one.is_finished:
            dataset.rows.setdefault(one.name, []).append(RunResult.read(one))
        else:
            dataset.missing.append(f"{one.name}-{one.seed}")
    return list(found.values())

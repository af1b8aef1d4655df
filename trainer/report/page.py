"""The report of an evaluation as one HTML file that needs no other.

A `Report` holds plain data; `report.html` beside this file makes the page of it, and
`published.json` has the figures of the paper's own models, as it prints them.
"""

import base64
import dataclasses
import math
from collections.abc import Sequence

import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.captioner import Caption
from mrnn_tf.vision import images
from trainer.evaluation.neighbours import Neighbourhoods
from trainer.evaluation.rerank import Reranking
from trainer.evaluation.retrieval import Ranking
from trainer.report import plots, published, templates

# The columns of the paper's tables, in their order.
CAPTION_METRICS = {
    **{f"bleu_{n}": f"BLEU-{n}" for n in range(1, 5)},
    "cider": "CIDEr",
    "rouge_l": "ROUGE-L",
    "meteor": "METEOR",
}
SCORE_METRICS = {"perplexity": "Perplexity", **CAPTION_METRICS}
RANK_METRICS = {"r_1": "R@1", "r_5": "R@5", "r_10": "R@10", "median_rank": "Med r"}
_KEY_FIGURES = ("bleu_4", "cider", "rouge_l", "meteor", "perplexity")
_ENDS, _BETWEEN, _UNSCORED = 12, 4, 24  # how many examples of each kind are shown
_THUMBNAIL = (480, 320)  # the most rows and columns


@dataclasses.dataclass(frozen=True)
class Example:
    """An image and what the model says of it."""

    image_id: str
    references: tuple[str, ...]
    captions: list[Caption]  # best first
    cider: float | None = None


@dataclasses.dataclass(frozen=True)
class Report:
    """What the page shows; a section without data is left out."""

    title: str
    facts: dict[str, str]  # `dataset` and `split`, where given, name the data of the scores
    curves: dict[str, plots.Points]  # those whose names end alike share a chart
    nearest_words: dict[str, list[str]]
    scores: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)  # by row, metric
    examples: Sequence[Example] = ()  # all images of the split, or a part; the page shows a choice
    headline: str | None = None  # the row of the key figures; the first by default
    reranking: Reranking | None = None
    reranking_note: str = ""  # how it was done
    ranking: Ranking | None = None
    neighbourhoods: Neighbourhoods | None = None
    # The encoded images with the ids in `shown`, as far as there are any.
    pictures: dict[str, bytes] = dataclasses.field(default_factory=dict)

    @property
    def shown(self) -> set[str]:
        """The ids of the images that the page shows."""
        changes = self.reranking.changes if self.reranking else ()
        examples = (example for group in self.groups.values() for example in group)
        shown = {image.image_id for image in (*changes, *examples)}
        for image, near in self.neighbourhoods.examples if self.neighbourhoods else ():
            shown |= {image, *(one for found in near.values() for one in found)}
        return shown

    @property
    def groups(self) -> dict[str, list[Example]]:
        """The examples to show, by heading; none is shown twice."""
        scored = sorted((e for e in self.examples if e.cider is not None), key=lambda e: -e.cider)
        unscored = [e for e in self.examples if e.cider is None][:_UNSCORED]
        best = scored[: min(_ENDS, math.ceil(len(scored) / 2))]
        worst = scored[max(len(best), len(scored) - _ENDS) :]
        middle = scored[len(best) : len(scored) - len(worst)]
        count = min(_BETWEEN, len(middle))
        between = [middle[(2 * i + 1) * len(middle) // (2 * count)] for i in range(count)]
        groups = {
            "Best by CIDEr": best,
            "In between": between,
            "Worst by CIDEr, the worst first": worst[::-1],
            "Without a score" if scored else "The first images": unscored,
        }
        return {heading: examples for heading, examples in groups.items() if examples}

    @property
    def key_figures(self) -> dict[str, str]:
        """The metrics at the top of the page, with the row that each is taken from."""
        rows = sorted(self.scores, key=lambda row: row != self.headline)
        of_metric = {m: [row for row in rows if m in self.scores[row]] for m in _KEY_FIGURES}
        return {metric: having[0] for metric, having in of_metric.items() if having}

    @property
    def further_metrics(self) -> dict[str, str]:
        """The metrics of captions that the paper has no column for."""
        metrics = [metric for row in self.scores.values() for metric in row]
        return {m: m.replace("_", " ") for m in metrics if m not in SCORE_METRICS}

    @property
    def charts(self) -> dict[str, dict[str, plots.Points]]:
        """The curves by what they measure."""
        charts = {}
        for name, points in self.curves.items():
            charts.setdefault(name.rsplit(" ", 1)[-1], {})[name] = points
        return charts

    def published(self, table: str) -> list[dict]:
        """The paper's own rows of a table, those on the same dataset first and marked `same`."""
        rows = published.rows(table) + (published.rows("server") if table == "generation" else [])
        rows = [row for row in rows if row["own"]]
        for row in rows:
            row["same"] = published.is_same(self.facts.get("dataset", ""), row["dataset"])
        return sorted(rows, key=lambda row: not row["same"])


def render(report: Report) -> str:
    """The whole page; it loads nothing and runs nothing."""
    metrics = {"score_metrics": SCORE_METRICS, "caption_metrics": CAPTION_METRICS}
    metrics["rank_metrics"] = RANK_METRICS
    functions = {"figure": figure, "shade": shade, "thumbnail": thumbnail, "exp": math.exp}
    data = {**metrics, **functions, "line_chart": plots.line_chart, "end_token": schema.END}
    return templates.render("report.html", report=report, **data)


def figure(value: float | str, metric: str) -> str:
    """A value as the paper prints those of its metric; its own values are texts already."""
    if isinstance(value, str):
        return value
    if metric == "perplexity":
        return f"{value:,.2f}"
    if metric in RANK_METRICS:
        return f"{value:.1f}"
    if metric in CAPTION_METRICS:
        return f"{value:.3f}".removeprefix("0")
    return f"{value:,.3f}".rstrip("0").rstrip(".")


def shade(evidence: float) -> float:
    """How strongly a word is shaded, 0..1: the same for the same evidence in every report."""
    return 1 - math.exp(-evidence / 2) if evidence > 0 else 0.0


def thumbnail(image: bytes) -> tuple[str, int, int] | None:
    """A small JPEG as a data URL, its width and height; `None` where it cannot be decoded."""
    try:
        pixels = images.decode(image)
    except tf.errors.InvalidArgumentError:
        return None
    scale = min(1.0, *(most / side for most, side in zip(_THUMBNAIL, pixels.shape, strict=False)))
    small = images.small_jpeg(pixels, scale).numpy()
    height, width = tf.io.decode_jpeg(small).shape[:2]
    return f"data:image/jpeg;base64,{base64.b64encode(small).decode()}", width, height

"""The page one looks at after an evaluation: one HTML file that needs no other."""

import dataclasses
import html
from collections.abc import Iterable
from pathlib import Path

from trainer import cards, plots, tables
from trainer.cards import Example

_COLUMNS = {"perplexity": "Perplexity", **tables.METRICS}
_KEY_FIGURES = ("bleu_4", "cider", "rouge_l", "meteor", "perplexity")

# The paper's own models: dataset, model and conditions, and the columns as far as they are given.
_PAPER = (
    ("Flickr8K", "m-RNN, AlexNet, test split", "24.39 .565 .386 .256 .170"),
    ("Flickr30K", "m-RNN, AlexNet, 1,000 test images, greedy", "35.11 .54 .36 .23 .15"),
    ("Flickr30K", "m-RNN, VggNet, 1,000 test images, greedy", "20.72 .60 .41 .28 .19"),
    ("MS COCO", "m-RNN, VggNet, 1,000 images of val, greedy", "13.60 .67 .49 .35 .25"),
    ("MS COCO", "m-RNN, test server, 5 references, greedy", "- .668 .488 .342 .239 .729 .489 .221"),
    ("MS COCO", "m-RNN, test server, 5 references, beam", "- .680 .506 .369 .272 .791 .499 .225"),
    ("MS COCO", "m-RNN-shared, test server, beam", "- .685 .512 .376 .279 .819 .504 .229"),
    ("IAPR TC-12", "m-RNN, AlexNet, test split", "6.92 .482 .357 .269 .208"),
)


@dataclasses.dataclass(frozen=True)
class Report:
    """What the page shows, in the order given."""

    title: str
    facts: dict[str, str]  # `dataset` and `split`, where given, name the data of the scores
    scores: dict[str, dict[str, float]]  # row -> metric -> value
    curves: dict[str, list[tuple[int, float]]]  # those whose names end alike share a chart
    nearest_words: dict[str, list[str]]
    examples: tuple[Example, ...]  # all images of the split, or some; the page shows a choice
    sections: tuple[tuple[str, str], ...] = ()  # further (heading, HTML), after the scores
    headline: str | None = None  # the row of the key figures; the first where none is named


def render(report: Report) -> str:
    """The whole page; it loads nothing and runs nothing."""
    sections = [("Scores", _scores(report))]
    sections += [(heading, f'<div class="wide">{body}</div>') for heading, body in report.sections]
    sections += [("Curves", _curves(report.curves)), ("Words", _words(report.nearest_words))]
    sections += [("Examples", cards.show(report.examples))]
    sections = [(heading, body) for heading, body in sections if body]
    links = "".join(
        f'<a href="#section-{number}">{html.escape(heading)}</a>'
        for number, (heading, _) in enumerate(sections)
    )
    bodies = "\n".join(
        f'<section id="section-{number}"><h2>{html.escape(heading)}</h2>{body}</section>'
        for number, (heading, body) in enumerate(sections)
    )
    facts = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
        for name, value in report.facts.items()
    )
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{html.escape(report.title)}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{html.escape(report.title)}</h1>
{_key_figures(report)}
<dl class="facts">{facts}</dl>
<nav>{links}</nav>
</header>
<main>
{bodies}
</main>
</body>
</html>
"""


def _key_figures(report: Report) -> str:
    rows = sorted(report.scores, key=lambda row: row != report.headline)
    figures = ""
    for metric in _KEY_FIGURES:
        row = next((row for row in rows if metric in report.scores[row]), None)
        if row is not None:
            figures += (
                f"<div><dt>{_COLUMNS[metric]}, {html.escape(row)}</dt>"
                f"<dd>{_number(metric, report.scores[row][metric])}</dd></div>"
            )
    return f'<dl class="figures">{figures}</dl>' if figures else ""


def _scores(report: Report) -> str:
    if not report.scores:
        return ""
    dataset = report.facts.get("dataset", "")
    place = ", ".join(filter(None, (dataset, report.facts.get("split"))))
    ours = "".join(
        tables.row("own", name, _cells(_COLUMNS, row), place) for name, row in report.scores.items()
    )
    same = [row for row in _PAPER if _plain(dataset) and _plain(dataset) in _plain(row[0])]
    theirs = ""
    for row in [*same, *(row for row in _PAPER if row not in same)]:
        name, conditions, values = row
        given = zip(_COLUMNS, values.split(), strict=False)
        given = {metric: value for metric, value in given if value != "-"}
        kind = "same" if row in same else "other"
        theirs += tables.row(kind, name, _cells(_COLUMNS, given), conditions)
    remark = (
        "The paper's rows on the same dataset come first. Image features, split and decoding are "
        "those named in the row, not this run's."
        if same
        else f"No row of the paper is about {html.escape(dataset) or 'this dataset'}: they are its "
        "results on other data with other image features, and no comparison."
    )
    table = tables.table(list(_COLUMNS.values()), [("This run", ours), (tables.PAPER, theirs)])
    return f'{table}<p class="remark">{remark}</p>{_further_scores(report.scores)}'


def _further_scores(scores: dict[str, dict[str, float]]) -> str:
    """The metrics that the paper has no column for."""
    metrics = list(dict.fromkeys(m for row in scores.values() for m in row if m not in _COLUMNS))
    rows = "".join(
        tables.row("own", name, _cells(metrics, row))
        for name, row in scores.items()
        if any(metric in row for metric in metrics)
    )
    headings = [metric.replace("_", " ") for metric in metrics]
    return tables.table(headings, [("", rows)]) if rows else ""


def _cells(metrics: Iterable[str], row: dict) -> list[str | None]:
    return [_number(metric, row[metric]) if metric in row else None for metric in metrics]


def _number(metric: str, value: float | str) -> str:
    if isinstance(value, str):  # as the paper prints it
        return value
    if metric == "perplexity":
        return f"{value:,.2f}"
    if metric in _COLUMNS:
        return tables.share(value)
    return f"{value:,.3f}".rstrip("0").rstrip(".")


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name)).casefold()


def _curves(curves: dict[str, list[tuple[int, float]]]) -> str:
    charts = {}
    for name, points in curves.items():
        charts.setdefault(name.rsplit(" ", 1)[-1], {})[name] = points
    drawn = "".join(
        plots.line_chart(
            next(iter(lines)) if len(lines) == 1 else measure, lines, measure == "perplexity"
        )
        for measure, lines in charts.items()
    )
    return f'<div class="charts">{drawn}</div>' if drawn else ""


def _words(nearest: dict[str, list[str]]) -> str:
    if not nearest:
        return ""
    rows = "".join(
        f"<div><dt>{html.escape(word)}</dt><dd>{html.escape(', '.join(others))}</dd></div>"
        for word, others in nearest.items()
    )
    return (
        "<p>The words nearest to a word in embedding layer II, nearest first.</p>"
        f'<dl class="words">{rows}</dl>'
    )

"""The tables, claims and figures as Markdown, JSON and one HTML file that needs no other."""

import dataclasses
import json
import os
from importlib import metadata
from typing import Any

from mrnn_tf import files
from trainer.experiments.claims import Verdict
from trainer.experiments.figures import Figures
from trainer.experiments.rows import EPOCHS
from trainer.experiments.tables import Table
from trainer.options import PaperOptions
from trainer.report import page as report
from trainer.report import plots, templates

MARKDOWN, JSON, HTML = "paper.md", "paper.json", "paper.html"
_TITLE = "The paper's tables, figures and claims"
_DESCRIBED = "Generated, and the first sentences found among those of about 100 images"
_VERDICTS = (
    "A claim that one side is better holds where the 95 % interval of the difference (images "
    "resampled, Student's t over seeds) is above zero and the difference is at least half of what "
    "the paper reports, with three seeds at least. It does not hold where the interval is below "
    "half of that. Otherwise it cannot be told, nor where CIDEr clearly says the opposite of "
    "BLEU-1. Gradients explode where the highest norm of a run, after its warm-up, is ten times "
    "its median. The claims are tested one by one, without a correction for their number."
)
_PROTOCOL = (
    "The rows of the paper's tables are short trainings of one length, {epochs} epochs, so that "
    "differences are those of the networks. The learning rates of m-RNN, visInRnn and NIC are the "
    "best of those tried on validation (docs/results.md), for the first two the highest one; other "
    "rows take that of m-RNN. A figure is the mean over seeds ± their standard deviation."
)


@dataclasses.dataclass(frozen=True)
class PaperPage:
    """All that the pages show."""

    options: PaperOptions
    names: list[str]  # of the datasets
    tables: list[Table]
    verdicts: list[Verdict]
    figures: list[Figures]
    missing: list[str]  # runs that are not finished
    notes: list[str]

    @property
    def title(self) -> str:
        return _TITLE

    @property
    def verdict_rule(self) -> str:
        return _VERDICTS

    @property
    def protocol(self) -> str:
        return _PROTOCOL.format(epochs=f"{self.options.epochs or EPOCHS:g}")

    @property
    def unfinished(self) -> str:
        """Which runs are missing, as a sentence."""
        count = "1 run is" if len(self.missing) == 1 else f"{len(self.missing)} runs are"
        names = ", ".join(self.missing)
        return f"{count} not finished: {names}. Their rows have fewer seeds, or are left out."

    @property
    def command(self) -> str:
        """What makes the pages again, with the names of directories and not their paths."""
        options = self.options
        data = ",".join(f"{name}=data/{name}" for name in self.names)
        given = [f"--data {data}", "--runs runs", f"--tables {','.join(options.tables)}"]
        given += [f"--rows {','.join(options.rows)}"] if options.rows else []
        given += [f"--split {options.split}"] if options.split != PaperOptions.split else []
        given += [f"--preset {options.preset}"] if options.preset != PaperOptions.preset else []
        given += [f"--epochs {options.epochs:g}"] if options.epochs is not None else []
        given += ["--meteor"] if options.meteor else []
        return f"python -m trainer.paper {' '.join(given)} --seeds {options.seeds} --output results"

    @property
    def commands(self) -> dict[str, str]:
        """What made every row of ours, by the table's rows; seeds differ in their number alone."""
        return {
            f"{table.dataset}: {row.name}": row.command
            for table in self.tables
            for row in table.rows
            if row.command
        }


def write(page: PaperPage, folder: str) -> list[str]:
    """Writes the three files; returns their paths."""
    contents = {MARKDOWN: markdown(page), JSON: as_json(page), HTML: html(page)}
    paths = [os.path.join(folder, name) for name in contents]
    os.makedirs(folder, exist_ok=True)
    for path, content in zip(paths, contents.values(), strict=True):
        files.write_whole(path, content)
    return paths


def markdown(page: PaperPage) -> str:
    """The page as Markdown; plots and pictures are in the HTML page alone."""
    lines = [f"# {page.title}", "", f"Made by `{page.command}`.", ""]
    lines += [page.protocol, ""]
    lines += [*page.notes, ""] if page.notes else []
    lines += [page.unfinished, ""] if page.missing else []
    if page.verdicts:
        lines += ["## Claims", "", page.verdict_rule, ""]
        lines += ["| claim | the paper | | ours | test |", "|---|---|---|---|---|"]
        for one in page.verdicts:
            cells = one.claim, one.reported, f"**{one.verdict}**", one.figures, one.test
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    for table in page.tables:
        lines += [f"## {table.heading}", ""]
        lines += [f"| | | {' | '.join(table.columns.values())} |"]
        lines += ["|---|---|" + "---:|" * len(table.columns)]
        for row in table.rows:
            name = f"**{row.name}**" if row.is_ours else row.name
            cells = [str(row.cells.get(metric, "")) for metric in table.columns]
            lines.append(f"| {name} | {row.note} | {' | '.join(cells)} |")
        lines += ["", table.note, ""] if table.note else [""]
    for figures in page.figures:
        lines += _figure_lines(figures)
    if page.commands:
        lines += ["## Commands", "", "Of seed 0; the other seeds differ in `--seed` alone.", ""]
        lines += [f"- {name}: `{command}`" for name, command in page.commands.items()]
    return "\n".join(lines).rstrip() + "\n"


def _figure_lines(figures: Figures) -> list[str]:
    lines = [f"## Figures: {figures.dataset}", "", f"Of the run {figures.made_by}.", ""]
    if figures.described:
        lines += [f"{_DESCRIBED}; an image's own are bold:", ""]
        lines += ["| image | generated | retrieved |", "|---|---|---|"]
        for one in figures.described:
            texts = "; ".join(f"**{t}**" if right else t for t, right in one.retrieved)
            lines.append(f"| {one.image_id} | {one.generated} | {texts} |")
        lines.append("")
    if figures.matches:
        shown = figures.matches_shown
        percents = next(iter(shown.values()))
        lines += ["Mean share of matches by the percentage retrieved; sentences are searched among"]
        lines += ["those of the 100 nearest images (the paper's supplement):", ""]
        lines += ["| | " + " | ".join(f"{x} %" for x in percents) + " |"]
        lines += ["|---|" + "---:|" * len(percents)]
        for direction, values in shown.items():
            cells = " | ".join(report.figure(value, "bleu_1") for value in values.values())
            lines.append(f"| {direction} | {cells} |")
        lines.append("")
    if figures.novel:
        lines += ["Share of captions that are no training captions (the paper, MS COCO: 71 %):", ""]
        lines += ["| | novel |", "|---|---:|"]
        lines += [f"| {name} | {share:.1%} |" for name, share in figures.novel.items()]
        lines.append("")
    return lines


def as_json(page: PaperPage) -> str:
    """All figures with the values of every seed."""
    content: dict[str, Any] = {
        "command": page.command,
        "version": metadata.version("mrnn_tf"),
        "missing": page.missing,
        "notes": page.notes,
        "claims": [dataclasses.asdict(one) for one in page.verdicts],
        "tables": [
            {
                "name": table.name,
                "dataset": table.dataset,
                "heading": table.heading,
                "note": table.note,
                "rows": [
                    {
                        "name": row.name,
                        "note": row.note,
                        "ours": row.is_ours,
                        "command": row.command,
                        "values": {metric: cell.to_dict() for metric, cell in row.cells.items()},
                    }
                    for row in table.rows
                ],
            }
            for table in page.tables
        ],
        "figures": [_without_pictures(figures) for figures in page.figures],
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _without_pictures(figures: Figures) -> dict[str, Any]:
    fields = dataclasses.asdict(dataclasses.replace(figures, pictures={}))
    del fields["pictures"]
    return fields


def html(page: PaperPage) -> str:
    """The whole page, with plots and pictures; it loads nothing and runs nothing."""
    functions = {"line_chart": plots.line_chart, "thumbnail": report.thumbnail}
    return templates.render("paper.html", page=page, described=_DESCRIBED, **functions)

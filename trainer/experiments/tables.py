"""The tables of the paper: its published rows, and ours below them."""

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mrnn_tf.config import COMBINED, MBR, ORACLES
from mrnn_tf.metrics import captions as metrics
from mrnn_tf.model.variants import WIRINGS
from trainer.evaluation.captions import GREEDY
from trainer.evaluation.rerank import PAPER_ROWS
from trainer.evaluation.rerank import ROWS as RERANKED
from trainer.evaluation.retrieval import IMAGE_TO_TEXT, TEXT_TO_IMAGE
from trainer.experiments.results import BEAM, DatasetResults, RunResult
from trainer.experiments.rows import REFERENCES, ROWS, TABLE_ROWS
from trainer.experiments.significance import seed_count
from trainer.options import CAPTIONS, RERANK, RETRIEVAL
from trainer.report import page, published

BLEU = {f"bleu_{n}": f"BLEU-{n}" for n in range(1, 5)}
GENERATION = {"perplexity": "Perplexity", **BLEU, "cider": "CIDEr"}
CAPTION = page.CAPTION_METRICS
RANKS = page.RANK_METRICS
RECURRENT = {"units": "RNN dim.", "lstm": "LSTM", "gradient_peak": "gradient peak",
             "parameters": "parameters", **GENERATION}  # fmt: skip
VARIANTS = {"parameters": "parameters", "perplexity": "Perplexity",
            **{f"greedy_{name}": f"{label}, greedy" for name, label in BLEU.items()},
            "bleu_4": "BLEU-4", "cider": "CIDEr"}  # fmt: skip
PRESETS = {"parameters": "parameters", "perplexity": "Perplexity",
           "perplexity_without_unknown": "without `<unk>`", **BLEU, "cider": "CIDEr"}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Cell:
    """A figure: as the paper prints it, or the values of our runs."""

    text: str = ""
    values: tuple[float, ...] = ()
    metric: str = ""

    def __str__(self) -> str:
        if not self.values:
            return self.text
        mean = _figure(statistics.fmean(self.values), self.metric)
        if len(self.values) < 2:
            return mean
        return f"{mean} ± {_figure(statistics.stdev(self.values), self.metric)}"

    def to_dict(self) -> Any:
        if not self.values:
            return self.text
        spread = statistics.stdev(self.values) if len(self.values) > 1 else None
        return {"mean": statistics.fmean(self.values), "spread": spread, "values": self.values}


@dataclasses.dataclass(frozen=True)
class TableRow:
    """A row with its cells by metric."""

    name: str
    note: str
    cells: dict[str, Cell]
    is_ours: bool = False
    command: str = ""  # what made it


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of one dataset."""

    name: str
    dataset: str
    heading: str
    columns: dict[str, str]  # metric -> heading
    rows: list[TableRow]
    note: str = ""


def make(table: str, results: DatasetResults) -> list[Table]:
    """A table of a dataset, in parts where it has directions; none where nothing is finished."""
    made = MAKERS[table](results)
    return [part for part in made if any(row.is_ours for row in part.rows)]


def notes(tables: Sequence[str], results: DatasetResults) -> list[str]:
    """What is left out of the tables, and why."""
    fewest = fewest_references(results.get("mrnn")[:1])
    if "server" not in tables or fewest is None or fewest >= REFERENCES[0]:
        return []
    count = REFERENCES[0]
    return [
        f"The server's table of {results.name} is left out: it needs {count} references of every "
        f"image, and one has {fewest}."
    ]


def _generation(results: DatasetResults) -> list[Table]:
    rows = _published("generation", results.name, GENERATION)
    rows += _published("server", results.name, GENERATION, references=REFERENCES[0])
    for name in TABLE_ROWS["generation"]:
        for decoding in (GREEDY, BEAM):
            rows += _ours(results, name, GENERATION, _captions(decoding), decoding)
    note = (
        "The paper decodes greedily; perplexity belongs to the network and stands beside the beam. "
        "Image features and split are not the paper's."
    )
    return [_table("generation", results, "Sentence generation", GENERATION, rows, note)]


def _retrieval(results: DatasetResults) -> list[Table]:
    tables = []
    for direction, heading in ((IMAGE_TO_TEXT, "Sentence"), (TEXT_TO_IMAGE, "Image")):
        rows = _published("retrieval", results.name, RANKS, direction=direction)
        for name in TABLE_ROWS["retrieval"]:
            for run in results.get(name)[:1]:
                for row in run.scores[RETRIEVAL]:
                    if row.startswith(direction):
                        note = row.removeprefix(direction).strip(", ")
                        rows += _ours(results, name, RANKS, _ranks(row), note)
        rows += _chance(results, direction)
        title = f"{heading} retrieval ({direction})"
        note = (
            "Sentences are compared by log P(s|I) - log P(s), taken of sampled training images "
            "(sample), of the mean image (mean), of nothing (none), or as perplexities divided by "
            "those of the mean image (kiros)."
        )
        tables.append(_table("retrieval", results, title, RANKS, rows, note))
    return tables


def _server(results: DatasetResults) -> list[Table]:
    rows = _published("server", results.name, CAPTION)
    note, fewest = "", fewest_references(results.get("mrnn")[:1])
    for count in REFERENCES:
        if fewest is not None and fewest < count:
            note = f"c{count} is left out: an image has {fewest} references."
            continue
        for decoding in (GREEDY, BEAM):
            measure = _of_references(decoding, count)
            rows += _ours(results, "mrnn", CAPTION, measure, f"{decoding}, c{count}")
    return [_table("server", results, "MS COCO server", CAPTION, rows, note)]


def _recurrent(results: DatasetResults) -> list[Table]:
    rows = _published("recurrent", None, RECURRENT)
    for name in TABLE_ROWS["recurrent"]:
        rows += _ours(results, name, RECURRENT, _recurrent_facts, "")
    note = (
        "The gradient peak is the highest norm of a training to its median one, before clipping "
        "and after the warm-up. Captions by a beam of five."
    )
    return [_table("recurrent", results, "Recurrent layers", RECURRENT, rows, note)]


def _rerank(results: DatasetResults) -> list[Table]:
    rows = _published("rerank", results.name, CAPTION)
    notes = {PAPER_ROWS["bleu"]: "NNref-BLEU", PAPER_ROWS["cider"]: "NNref-CIDEr"}
    shown = {"bleu": "whitened, BLEU", "cider": "whitened, CIDEr", MBR: "mbr", COMBINED: "combined"}
    notes |= {RERANKED[method]: text for method, text in shown.items()}
    notes |= {oracle: f"{oracle.removeprefix('oracle_').upper()} oracle" for oracle in ORACLES}
    for name in TABLE_ROWS["rerank"]:
        rows += _ours(results, name, CAPTION, _captions(BEAM), BEAM)
        for row, note in notes.items():
            rows += _ours(results, name, CAPTION, _reranked(row), note)
    note = (
        "The ten sentences of a beam of ten, chosen by the captions of 60 training images: NNref "
        "by refined features, as in the paper; whitened and combined by whitened features, which "
        "were chosen on Flickr8k's validation split; mbr by the other nine sentences."
    )
    return [_table("rerank", results, "Consensus reranking", CAPTION, rows, note)]


def _variants(results: DatasetResults) -> list[Table]:
    theirs = {name: name.removeprefix("greedy_") for name in VARIANTS if "greedy_" in name}
    rows = []
    for row in published.rows("variants"):
        cells = {ours: Cell(row["values"][name]) for ours, name in theirs.items()}
        rows.append(TableRow(row["model"], f"{row['dataset']}, {row['conditions']}", cells))
    for name in TABLE_ROWS["variants"]:
        rows += _ours(results, name, VARIANTS, _variant_facts, "")
    note = "The last two columns are of a beam of five."
    return [_table("variants", results, "Variants of the network", VARIANTS, rows, note)]


def _presets(results: DatasetResults) -> list[Table]:
    rows = []
    for name in TABLE_ROWS["presets"]:
        for run in results.get(name)[:1]:
            for decoding in run.scores[CAPTIONS]:
                rows += _ours(results, name, PRESETS, _variant_facts_of(decoding), decoding)
    return [_table("presets", results, "Presets", PRESETS, rows)]


def _photographs(results: DatasetResults) -> list[Table]:
    rows = []
    for name in TABLE_ROWS["photographs"]:
        rows += _ours(results, name, PRESETS, _variant_facts, "")
    note = (
        "Smaller sets are parts of larger ones; the vocabulary is that of their captions, so that "
        "perplexities with `<unk>` do not compare."
    )
    return [_table("photographs", results, "Numbers of photographs", PRESETS, rows, note)]


Measured = Callable[[RunResult], Mapping[str, float | str]]
MAKERS: dict[str, Callable[[DatasetResults], list[Table]]] = {
    "generation": _generation,
    "retrieval": _retrieval,
    "server": _server,
    "recurrent": _recurrent,
    "rerank": _rerank,
    "variants": _variants,
    "presets": _presets,
    "photographs": _photographs,
}


def _captions(decoding: str) -> Measured:
    return lambda run: run.scores[CAPTIONS].get(decoding, {})


def _reranked(row: str) -> Measured:
    return lambda run: run.scores.get(RERANK, {}).get(row, {})


def _ranks(row: str) -> Measured:
    return lambda run: run.scores[RETRIEVAL][row]


def _of_references(decoding: str, count: int) -> Measured:
    def measured(run: RunResult) -> Mapping[str, float]:
        references = {image: texts[:count] for image, texts in run.references.items()}
        meteor = run.planned.options.meteor
        return metrics.evaluate(references, run.captions(decoding), meteor=meteor).overall

    return measured


def _recurrent_facts(run: RunResult) -> Mapping[str, float | str]:
    model, _ = run.planned.settings
    cell = WIRINGS[model.variant].cell or model.cell
    facts = {"units": str(model.recurrent), "lstm": "yes" if cell == "lstm" else "no"}
    facts |= {"parameters": f"{run.parameters:,}"}
    peak = {} if run.gradient_peak is None else {"gradient_peak": run.gradient_peak}
    return facts | peak | run.scores[CAPTIONS][BEAM]


def _variant_facts_of(decoding: str) -> Measured:
    return lambda run: {"parameters": f"{run.parameters:,}", **run.scores[CAPTIONS][decoding]}


def _variant_facts(run: RunResult) -> Mapping[str, float | str]:
    greedy = {f"greedy_{name}": value for name, value in run.scores[CAPTIONS][GREEDY].items()}
    return {"parameters": f"{run.parameters:,}", **greedy, **run.scores[CAPTIONS][BEAM]}


def _ours(
    results: DatasetResults, name: str, columns: Iterable[str], measure: Measured, note: str
) -> list[TableRow]:
    """The row of our runs of a name; none where no run is finished or nothing was measured."""
    runs = results.get(name)
    measured = [values for run in runs if (values := measure(run))]
    cells = {}
    for metric in columns:
        values = [one[metric] for one in measured if metric in one]
        if values and isinstance(values[0], str):
            cells[metric] = Cell(values[0])
        elif values:
            cells[metric] = Cell(values=tuple(values), metric=metric)
    if not cells:
        return []
    note = ", ".join(filter(None, [note, seed_count(len(measured))]))
    return [TableRow(ROWS[name].label, note, cells, True, runs[0].planned.shown)]


def _published(table: str, dataset: str | None, columns: Iterable[str], **only) -> list[TableRow]:
    rows = []
    for row in published.rows(table, dataset):
        if all(row.get(key) == value for key, value in only.items()):
            cells = {m: Cell(row["values"][m]) for m in columns if m in row["values"]}
            rows.append(TableRow(row["model"], row["conditions"], cells))
    return rows


def _chance(results: DatasetResults, direction: str) -> list[TableRow]:
    """What a random order gives on our split, as the expected recalls and the median rank."""
    runs = results.get("mrnn") or results.get("mrnn_shared")
    if not runs:
        return []
    counts = [len(texts) for texts in runs[0].references.values()]
    total, images = sum(counts), len(counts)
    recalls = {"r_1": 1, "r_5": 5, "r_10": 10}
    if direction == TEXT_TO_IMAGE:
        values = {name: 100 * min(1.0, k / images) for name, k in recalls.items()}
        values["median_rank"] = (images + 1) / 2
    else:
        values = {n: statistics.fmean(100 * _found(k, c, total) for c in counts)
                  for n, k in recalls.items()}  # fmt: skip
        count = round(statistics.fmean(counts))
        values["median_rank"] = float(next(
            rank for rank in range(1, total + 1) if _found(rank, count, total) >= 0.5
        ))  # fmt: skip
    cells = {name: Cell(values=(value,), metric=name) for name, value in values.items()}
    return [TableRow("Chance", "as any network without the image", cells, True)]


def _found(k: int, right: int, total: int) -> float:
    """The probability that one of the right answers is among k of all, drawn at random."""
    missed = 1.0
    for drawn in range(min(k, total)):
        missed *= max(0, total - right - drawn) / (total - drawn)
    return 1.0 - missed


def fewest_references(runs: Sequence[RunResult]) -> int | None:
    """The fewest references that an image of the runs' split has."""
    return min((len(own) for run in runs for own in run.references.values()), default=None)


def _table(name, results, heading, columns, rows, note="") -> Table:
    used = {metric for row in rows for metric in row.cells}
    columns = {metric: text for metric, text in columns.items() if metric in used}
    return Table(name, results.name, f"{heading}: {results.name}", columns, rows, note)


def _figure(value: float, metric: str) -> str:
    if metric == "gradient_peak":
        return f"{value:.1f}"
    return page.figure(value, metric.removeprefix("greedy_").removesuffix("_without_unknown"))

"""Tables of trained networks on one dataset: perplexity, BLEU and CIDEr on validation.

    python benchmarks/tables.py --data data/flickr8k --table variants

Trains and evaluates one row after the other by `trainer.task` and `trainer.evaluate` with the row's
flags, and prints the table. Stopped, the same command goes on where it was; what is finished is
skipped. `--rows` makes a part of a table, so that several machines may share one.

The rows of the table `photographs` are numbers of training images, chosen at random from those of
the dataset, the smaller sets being parts of the larger ones; each has the words of its captions.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import subsets
from absl import app, flags

from mrnn_tf import run
from mrnn_tf.config import CELLS, VARIANTS

PHOTOGRAPHS = "photographs"
EPOCHS = {500: 28, 1000: 24, 2000: 20, 4000: 16, 6000: 14}  # by the number of photographs

# Flags of every row. RUN-NAME stands for the directory of the row NAME with the same seed.
TABLES = {
    "variants": {
        name: ["--preset=paper", "--epochs=10", argument]
        for name, argument in [
            *((variant, f"--variant={variant}") for variant in VARIANTS),
            *((f"mrnn-{cell}", f"--cell={cell}") for cell in CELLS if cell != "mrnn"),
        ]
    },
    "presets": {
        "paper": ["--preset=paper"],
        "shared": ["--preset=shared"],
        "best": ["--preset=best", "--initial_run=RUN-paper"],
    },
    # Few photographs need more epochs; the best checkpoint is evaluated.
    PHOTOGRAPHS: {
        str(photographs): ["--preset=paper", f"--epochs={epochs}", "--patience=5"]
        for photographs, epochs in EPOCHS.items()
    },
}
SCORES = "report/scores.json"  # in a run directory
COLUMNS = {
    "perplexity": "perplexity",
    "perplexity_without_unknown": "without `<unk>`",
    **{f"bleu_{n}": f"BLEU-{n}" for n in (1, 2, 3, 4)},
    "cider": "CIDEr",
}

_DATA = flags.DEFINE_string("data", None, "Records made by trainer.prepare.", required=True)
_TABLE = flags.DEFINE_enum("table", "variants", sorted(TABLES), "Which table.")
_OUTPUT = flags.DEFINE_string("output", "runs", "Folder for the run directories.")
_SEEDS = flags.DEFINE_list("seeds", ["0"], "Seeds of each row.")
_ROWS = flags.DEFINE_list("rows", None, "Only these rows.")


def main(_) -> None:
    table = TABLES[_TABLE.value]
    chosen = {name: table[name] for name in _ROWS.value or table}
    for name, arguments in chosen.items():
        for seed in _SEEDS.value:
            _make(name, seed, arguments)
    print(f"| {_TABLE.value} | seeds | parameters | " + " | ".join(COLUMNS.values()) + " |")
    print("|---|---:|---:|" + "---:|" * len(COLUMNS))
    for name in chosen:
        scores = [_scores(name, seed) for seed in _SEEDS.value]
        network = run.build(run.load_config(str(_folder(name, _SEEDS.value[0]))))
        means = [sum(row[column] for row in scores) / len(scores) for column in COLUMNS]
        values = [f"{m:.2f}" if m > 2 else f"{m:.3f}".lstrip("0") for m in means]
        cells = [name, str(len(scores)), f"{network.model.parameter_count:,}", *values]
        print(f"| {' | '.join(cells)} |", flush=True)


def _make(name: str, seed: str, arguments: list[str]) -> None:
    """Trains and evaluates a row, unless its scores are there; a stopped run goes on."""
    folder = _folder(name, seed)
    if (folder / SCORES).exists():
        return
    data = _DATA.value
    if _TABLE.value == PHOTOGRAPHS:
        data = subsets.make(data, int(name), Path(_OUTPUT.value))
    arguments = [re.sub("RUN-(.*)", lambda row: str(_folder(row[1], seed)), a) for a in arguments]
    _run(folder, data, "trainer.task", f"--seed={seed}", *arguments)
    # Presets are evaluated with all widths, the many other rows with that of the captions.
    fewer = [] if _TABLE.value == "presets" else ["--widths=", "--n_best=5"]
    _run(folder, data, "trainer.evaluate", "--nometeor", *fewer)


def _run(folder: Path, data: str, module: str, *arguments: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", module, f"--data={data}", f"--job_dir={folder}", *arguments]
    print(" ".join(command[1:]), file=sys.stderr, flush=True)
    with open(folder / "table.log", "a") as log:
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3"} | os.environ
        subprocess.run(command, stdout=log, stderr=log, check=True, env=environment)


def _scores(name: str, seed: str) -> dict[str, float]:
    """The row of the report that holds the perplexity too: the chosen beam."""
    rows = json.loads((_folder(name, seed) / SCORES).read_text())["captions"].values()
    return next(row for row in rows if "perplexity" in row)


def _folder(name: str, seed: str) -> Path:
    return Path(_OUTPUT.value) / f"{name}-{seed}"


if __name__ == "__main__":
    app.run(main)

"""The perplexity of every variant and cell on one dataset, as a table.

    python benchmarks/variants.py --data data/flickr8k --output runs/variants --epochs 10

Runs one training after the other, `python -m trainer.task --preset paper` with the row's flags, and
prints the table. Stopped, the same command goes on where it was; what is finished is skipped.
"""

import subprocess
import sys
from pathlib import Path

import tensorflow as tf
from absl import app, flags

from mrnn_tf import run, schema

ROWS = {
    "mrnn": [],
    "no_emb_input": ["--variant=no_emb_input"],
    "one_layer_emb": ["--variant=one_layer_emb"],
    "emb_one_input": ["--variant=emb_one_input"],
    "vis_in_rnn": ["--variant=vis_in_rnn"],
    "vis_in_rnn_both": ["--variant=vis_in_rnn_both"],
    "vis_in_rnn_both_shared": ["--variant=vis_in_rnn_both_shared"],
    "mrnn_shared": ["--variant=mrnn_shared"],
    "rnn_base": ["--variant=rnn_base"],
    "nic": ["--variant=nic"],
    "mrnn, elman": ["--cell=elman"],
    "mrnn, gru": ["--cell=gru"],
    "mrnn, lstm": ["--cell=lstm"],
}

_DATA = flags.DEFINE_string("data", None, "Records made by trainer.prepare.", required=True)
_OUTPUT = flags.DEFINE_string("output", "runs/variants", "Folder for the runs.")
_EPOCHS = flags.DEFINE_float("epochs", 10, "Epochs of each run.")
_SEEDS = flags.DEFINE_list("seeds", ["0"], "Seeds of each row.")
_ROWS = flags.DEFINE_list("rows", None, "Only rows whose name begins with one of these.")


def main(_) -> None:
    chosen = {
        name: arguments
        for name, arguments in ROWS.items()
        if _ROWS.value is None
        or any(name == row or name.endswith(" " + row) for row in _ROWS.value)
    }
    for name, arguments in chosen.items():
        for seed in _SEEDS.value:
            _train(_job_dir(name, seed), [*arguments, f"--seed={seed}"])
    print("| variant | parameters | perplexity | without `<unk>` | seeds |")
    print("|---|---:|---:|---:|---:|")
    for name in chosen:
        results = [_result(_job_dir(name, seed)) for seed in _SEEDS.value]
        means = [sum(column) / len(results) for column in zip(*results, strict=True)]
        print(f"| {name} | {means[0]:,.0f} | {means[1]:.2f} | {means[2]:.2f} | {len(results)} |")


def _job_dir(name: str, seed: str) -> Path:
    return Path(_OUTPUT.value) / f"{name.replace(', ', '-')}-{seed}"


def _train(job_dir: Path, arguments: list[str]) -> None:
    marker = job_dir / "finished"
    if marker.exists():
        return
    job_dir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "trainer.task", "--preset=paper", *arguments]
    command += [f"--data={_DATA.value}", f"--job_dir={job_dir}", f"--epochs={_EPOCHS.value}"]
    print(" ".join(command[1:]), file=sys.stderr, flush=True)
    with open(job_dir / "log.txt", "a") as log:
        subprocess.run(command, stderr=log, stdout=log, check=True)
    marker.touch()


def _result(job_dir: Path) -> tuple[int, float, float]:
    config = run.load_config(str(job_dir))
    latest = run.latest(str(job_dir / schema.CHECKPOINT_DIR), "model")
    saved = tf.train.load_checkpoint(latest)

    def value(name: str) -> float:
        return float(saved.get_tensor(f"progress/{name}/.ATTRIBUTES/VARIABLE_VALUE"))

    parameters = run.build(config).model.count_params()
    return parameters, value("best_perplexity"), value("best_without_unknown")


if __name__ == "__main__":
    app.run(main)

"""The plan of the paper's tables: its order, its commands, and how its runs are made."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
import tiny

from mrnn_tf.config import RunConfig
from mrnn_tf.errors import UserError
from mrnn_tf.presets import PRESETS
from trainer.experiments import runs, subsets
from trainer.experiments.rows import ROWS, TABLE_ROWS
from trainer.experiments.runs import PlannedRun, plan
from trainer.options import PAPER_TABLES, PaperOptions


@pytest.fixture
def options(tiny_data, tmp_path):
    return PaperOptions(data=(f"tiny={tiny_data}",), output=str(tmp_path / "out"), preset="demo")


def made(planned):
    return [str(one).removeprefix("tiny/") for one in planned]


def test_every_table_has_rows_and_every_row_a_table():
    assert {*PAPER_TABLES} < {*TABLE_ROWS}
    assert {row for rows in TABLE_ROWS.values() for row in rows} == {*ROWS}
    for row in ROWS.values():
        row.settings("paper", None)  # refuses what is no setting
        assert row.preset is None or row.preset in PRESETS


def test_seeds_come_one_after_the_other_and_only_where_claims_need_them(options):
    options = dataclasses.replace(options, rows=("units_128", "mrnn", "units_512"), seeds=2)
    assert made(plan(options)) == ["mrnn-0", "units_512-0", "units_128-0", "mrnn-1", "units_512-1"]


def test_a_row_brings_the_one_it_begins_with(options, tmp_path):
    options = dataclasses.replace(options, tables=("presets",), rows=("best",), seeds=1)
    first, second = plan(options)
    assert (first.name, second.name) == ("paper", "best")
    task, _ = second.commands("data", "runs")
    assert "--initial_run=runs/tiny/paper-0" in task and "--preset=best" in task
    assert second.settings[1].initial_run == f"{tmp_path}/out/runs/tiny/paper-0"


def test_the_commands_are_those_of_the_programs(options, tiny_data):
    options = dataclasses.replace(options, rows=("vis_in_rnn",), seeds=1)
    [one] = plan(options)
    task, evaluate = one.commands(one.data, one.runs)
    assert task[:2] == ["trainer.task", f"--data={tiny_data}"]
    assert {"--variant=vis_in_rnn", "--preset=demo", "--seed=0", "--epochs=4"} <= {*task}
    assert "--split=val" in evaluate and "--tasks=captions" in evaluate
    assert "/" not in one.shown.replace("data/tiny", "").replace("runs/tiny/vis_in_rnn-0", "") \
        .replace("/report/val", "")  # fmt: skip
    shorter = dataclasses.replace(options, epochs=0.5)
    task, _ = plan(shorter)[0].commands("data", "runs")
    assert "--epochs=0.5" in task and "--evaluate_epochs=0.5" in task and "--epochs=4" not in task


def test_a_dataset_is_named_by_itself_where_nobody_names_it(tiny_data, tmp_path):
    options = PaperOptions(data=(tiny_data,), output=str(tmp_path), rows=("mrnn",), seeds=1)
    assert made(plan(options)) == ["mrnn-0"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split": "test"}, r"has no captions of the split 'test'; its splits are train, val"),
        ({"rows": ("lstm",), "tables": ("variants",)}, "`rows` must be of the chosen tables"),
        ({"data": ("a b={data}",)}, "`data` must be NAME=DIR"),
        ({"data": ("t={data}", "t={data}")}, "`data` has a name twice"),
        ({"data": ("t=/nowhere",)}, "/nowhere holds no dataset.json"),
        ({"tables": ("server",)}, "server needs 5 references of every image, and one .* has 3"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused_in_one_sentence(options, tiny_data, change, message):
    if "data" in change:
        change = {"data": tuple(text.format(data=tiny_data) for text in change["data"])}
    with pytest.raises((UserError, FileNotFoundError), match=message):
        plan(dataclasses.replace(options, **change))


def claim(one: PlannedRun, **changes) -> Path:
    """Makes the run directory of a plan, as training leaves it."""
    model, train = one.settings
    folder = Path(one.folder)
    folder.mkdir(parents=True)
    config = RunConfig(model, train, 9, tiny.FEATURE_SIZE, {"identity": tiny.IDENTITY}, "tiny")
    config = dataclasses.replace(config, **changes)
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    return folder


def test_a_run_directory_of_other_settings_or_another_version_is_refused(options):
    options = dataclasses.replace(options, rows=("mrnn",), seeds=1)
    [one] = plan(options)
    folder = claim(one)
    assert made(plan(options)) == ["mrnn-0"]
    with pytest.raises(UserError, match=r"mrnn-0 holds another run: train.epochs is 4.0 there"):
        plan(dataclasses.replace(options, epochs=3.0))
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "dataset": "other"}))
    with pytest.raises(UserError, match=r"holds another run: dataset is 'other' there"):
        plan(options)
    content["model"]["gates"] = 3
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"has no field `gates`"):
        plan(options)


def test_an_evaluation_without_what_the_row_needs_is_refused(options):
    options = dataclasses.replace(options, rows=("mrnn",), seeds=1)
    [one] = plan(options)
    report = claim(one) / "report" / "val"
    report.mkdir(parents=True)
    (report / "scores.json").write_text(json.dumps({"captions": {}}))
    with pytest.raises(UserError, match=r"was evaluated without rerank, maybe by another version"):
        plan(options)
    everything = {task: {} for task in one.row.tasks}
    (report / "scores.json").write_text(json.dumps(everything))
    with pytest.raises(UserError, match=r"was evaluated without details.json"):
        plan(options)


@pytest.fixture
def pretend(monkeypatch):
    """Replaces the programs of a run by what `do` says for the run's name; returns that dict."""
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(__file__))
    monkeypatch.setattr(runs, "_SECONDS", 0.02)
    do = {}

    def commands(self, data, folder):
        first = do.get(self.name, "train")
        return [["pretend", first, self.folder], ["pretend", "evaluate", self.folder]]

    monkeypatch.setattr(PlannedRun, "commands", commands)
    return do


def test_runs_are_made_once_and_what_fails_takes_nothing_with_it(options, pretend):
    options = dataclasses.replace(options, rows=("mrnn", "rnn_base", "nic", "lstm"), seeds=1)
    planned = plan(options)
    pretend |= {"rnn_base": "fail", "nic": "crash", "lstm": "stop"}
    failed = runs.make(planned, jobs=1)
    assert failed["tiny/rnn_base-0"] == "--data is damaged."
    assert "ended with code 3: see " in failed["tiny/nic-0"]
    assert failed["tiny/lstm-0"] == "it was stopped; the same command goes on."
    assert [one.is_finished for one in planned] == [True, False, False, False]
    pretend.clear()
    pretend["mrnn"] = "fail"  # finished: not made again
    assert runs.make(planned, jobs=1) == {}
    assert all(one.is_finished for one in planned)


def test_a_run_fails_by_its_last_error_and_before_it_has_begun(options, pretend, monkeypatch):
    options = dataclasses.replace(options, rows=("mrnn", "photographs_500"), seeds=1,
                                  tables=("retrieval", "photographs"))  # fmt: skip
    few = dataclasses.replace(ROWS["photographs_500"], photographs=6)
    monkeypatch.setitem(ROWS, "photographs_500", few)
    planned = plan(options)
    pretend["mrnn"] = "fail"
    assert runs.make(planned[:1], jobs=1) == {"tiny/mrnn-0": "--data is damaged."}
    pretend["mrnn"] = "crash"

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runs.subsets, "make", full)
    failed = runs.make(planned, jobs=2)
    assert "ended with code 3: see " in failed["tiny/mrnn-0"]
    assert "No space left on device" in failed["tiny/photographs_500-0"]


def test_more_photographs_than_there_are_cannot_be_asked_for(options):
    options = dataclasses.replace(options, rows=("photographs_500",), tables=("photographs",))
    with pytest.raises(UserError, match=r"photographs_500 needs 500 training images, and"):
        plan(options)


def test_what_a_platform_says_of_one_run_is_not_passed_on(options, pretend, monkeypatch):
    monkeypatch.setenv("AIP_CHECKPOINT_DIR", "elsewhere")
    options = dataclasses.replace(options, rows=("mrnn",), seeds=1)
    pretend["mrnn"] = "environment"
    assert runs.make(plan(options), jobs=1) == {}


def test_runs_are_made_side_by_side(options, pretend):
    options = dataclasses.replace(options, rows=("mrnn", "rnn_base"), seeds=1)
    pretend |= {"mrnn": "wait", "rnn_base": "wait"}
    assert runs.make(plan(options), jobs=2) == {}


def test_a_run_waits_for_the_one_it_begins_with(options, pretend):
    options = dataclasses.replace(options, tables=("presets",), seeds=1)
    pretend["paper"] = "fail"
    failed = runs.make(plan(options), jobs=3)
    assert failed == {
        "tiny/paper-0": "--data is damaged.",
        "tiny/best-0": "it begins with tiny/paper-0, which failed.",
    }
    pretend.clear()
    assert runs.make(plan(options), jobs=3) == {}


def test_a_part_of_a_dataset_has_its_own_words(tmp_path):
    data = tiny.write(str(tmp_path / "data"))
    part = Path(subsets.make(data, 6, tmp_path / "parts"))
    info = json.loads((part / "dataset.json").read_text())
    whole = json.loads((Path(data) / "dataset.json").read_text())["splits"]
    assert info["splits"].pop("train")["images"] == 6
    counts = {split: own["images"] for split, own in info["splits"].items()}
    assert counts == {split: own["images"] for split, own in whole.items() if split != "train"}
    assert subsets.make(data, 6, tmp_path / "parts") == str(part)

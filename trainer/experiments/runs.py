"""The runs of a plan: trained and evaluated by the programs, several side by side.

A run is finished when its evaluation is: the same plan goes on where it was stopped. What has been
made with other settings or by another version is refused before anything is trained.
"""

import contextlib
import dataclasses
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NoReturn

import tensorflow as tf
from absl import logging

from mrnn_tf import files, program, run, schema
from mrnn_tf.config import ModelConfig, TrainConfig
from mrnn_tf.data import pipeline, records
from mrnn_tf.errors import UserError
from mrnn_tf.progress import Progress
from trainer.experiments import subsets
from trainer.experiments.rows import REFERENCES, ROWS, TABLE_ROWS, Row
from trainer.options import PAPER_TABLES, PaperOptions
from trainer.task import RESTART_ME

LOG = "paper.log"  # in a run directory
_EVALUATION = 2.0  # what an evaluation costs, in epochs
_SECONDS = 0.2  # between two looks at the processes


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A prepared dataset under the name that the tables give it."""

    name: str
    directory: str
    info: records.DatasetInfo

    @classmethod
    def parse(cls, text: str) -> "Dataset":
        """Reads NAME=DIR, or DIR, whose name is that of the dataset it was made of."""
        name, separator, directory = text.partition("=")
        info = records.DatasetInfo.load(directory if separator else text)
        dataset = cls(name, directory, info) if separator else cls(info.dataset, text, info)
        if not dataset.name or not set(dataset.name) <= _NAME:
            raise UserError(
                f"`data` must be NAME=DIR with a name of letters, digits, _ and -; got {text!r}."
            )
        return dataset


_NAME = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A row with a seed on a dataset."""

    dataset: Dataset
    name: str  # of the row
    seed: int
    options: PaperOptions

    @property
    def row(self) -> Row:
        return ROWS[self.name]

    @property
    def runs(self) -> str:
        """The folder of all run directories."""
        return self.options.runs or os.path.join(self.options.output, "runs")

    @property
    def folder(self) -> str:
        return self._folder(self.runs, self.name)

    @property
    def report(self) -> str:
        """The folder of the evaluation."""
        return os.path.join(self.folder, schema.REPORT_DIR, self.options.split)

    @property
    def initial(self) -> str | None:
        """The run directory that training begins with."""
        return self._folder(self.runs, self.row.initial_row) if self.row.initial_row else None

    @property
    def data(self) -> str:
        """The records that it is trained and evaluated on."""
        if not self.row.photographs:
            return self.dataset.directory
        return os.path.join(self.parts, subsets.name(self.row.photographs))

    @property
    def parts(self) -> str:
        """The folder of datasets that are parts of these records."""
        fingerprint = self.dataset.info.fingerprint[:8]
        return os.path.join(self.runs, self.dataset.name, f"parts-{fingerprint}")

    @property
    def settings(self) -> tuple[ModelConfig, TrainConfig]:
        """What it is trained with."""
        model, train = self.row.settings(self.options.preset, self.options.epochs)
        return model, dataclasses.replace(train, seed=self.seed, initial_run=self.initial or "")

    @property
    def cost(self) -> float:
        """In epochs, about."""
        return self.settings[1].epochs + _EVALUATION

    @property
    def is_finished(self) -> bool:
        return tf.io.gfile.exists(os.path.join(self.report, schema.SCORES_FILE))

    @property
    def shown(self) -> str:
        """The commands for a reader, with the names of directories and not their paths."""
        data = f"data/{self.dataset.name}"
        if self.row.photographs:
            data = os.path.join("runs", os.path.relpath(self.data, self.runs))
        commands = self.commands(data, "runs")
        return " && ".join(f"python -m {shlex.join(command)}" for command in commands)

    def commands(self, data: str, runs: str) -> list[list[str]]:
        """The modules that train and evaluate it, each with its flags."""
        folder = self._folder(runs, self.name)
        here = [f"--data={data}", f"--job_dir={folder}"]
        preset, row = self.row.preset or self.options.preset, self.row
        given = {**row.model, **row.train}
        if self.options.epochs is not None:
            given |= row.length(self.options.epochs)
        task = ["trainer.task", *here, f"--preset={preset}", f"--seed={self.seed}"]
        for name, value in given.items():
            task.append(f"--{name}={value:g}" if isinstance(value, float) else f"--{name}={value}")
        if row.initial_row:
            task.append(f"--initial_run={self._folder(runs, row.initial_row)}")
        report = os.path.join(folder, schema.REPORT_DIR, self.options.split)
        evaluate = ["trainer.evaluate", *here, f"--split={self.options.split}"]
        evaluate += [f"--output={report}", f"--tasks={','.join(row.tasks)}"]
        evaluate += [f"--widths={','.join(map(str, row.widths))}"]
        return [task, evaluate + ([] if self.options.meteor else ["--nometeor"])]

    def check(self) -> None:
        """Refuses a run directory of another version, dataset or configuration."""
        config = run.load_config(self.folder)
        if config is None:
            return
        if self.is_finished:
            self._check_evaluation()
        model, train = self.settings
        if _is_same_run(config.train.initial_run, train.initial_run):  # under another path
            train = dataclasses.replace(train, initial_run=config.train.initial_run)
        expected = dataclasses.replace(config, model=model, train=train)
        if not self.row.photographs:  # whose records may not be made yet
            expected = dataclasses.replace(expected, dataset=self.dataset.info.fingerprint)
        if difference := config.difference(expected):
            raise UserError(
                f"{self.folder} holds another run: {difference}. Choose other `runs`, or remove it."
            )

    def _check_evaluation(self) -> None:
        path = os.path.join(self.report, schema.SCORES_FILE)
        scores = files.read_json(path, "the scores of an evaluation are wanted")
        has_details = tf.io.gfile.exists(os.path.join(self.report, schema.DETAILS_FILE))
        missing = [task for task in self.row.tasks if task not in scores]
        if missing or not has_details:
            what = missing[0] if missing else schema.DETAILS_FILE
            raise UserError(
                f"{self.report} was evaluated without {what}, maybe by another version: remove it, "
                "and it is evaluated again."
            )

    def _folder(self, runs: str, name: str) -> str:
        return os.path.join(runs, self.dataset.name, f"{name}-{self.seed}")

    def __str__(self) -> str:
        return f"{self.dataset.name}/{self.name}-{self.seed}"


def _is_same_run(path: str, other: str) -> bool:
    """Whether two run directories have the same dataset, row and seed."""
    return path.rstrip("/").split("/")[-2:] == other.rstrip("/").split("/")[-2:]


def plan(options: PaperOptions) -> list[PlannedRun]:
    """All runs of the tables in their order; refuses what cannot be trained or taken."""
    datasets = [Dataset.parse(text) for text in options.data]
    if len({dataset.name for dataset in datasets}) < len(datasets):
        raise UserError("`data` has a name twice: give the datasets different names, as NAME=DIR.")
    for dataset in datasets:
        for split in (schema.TRAIN, options.split):
            counts = dataset.info.splits.get(split)
            if counts is None or not counts.captions:
                has = ", ".join(dataset.info.splits) or "none"
                raise UserError(
                    f"`data` {dataset.directory} has no captions of the split {split!r}; "
                    f"its splits are {has}."
                )
    wanted = {name for table in options.tables for name in TABLE_ROWS[table]}
    if unknown := [name for name in options.rows or () if name not in wanted]:
        rows = ", ".join(name for name in ROWS if name in wanted)
        raise UserError(f"`rows` must be of the chosen tables: {rows}; got {unknown[0]}.")
    wanted = set(options.rows or wanted)
    wanted |= {ROWS[name].initial_row for name in wanted} - {None}
    planned = [
        PlannedRun(dataset, name, seed, options)
        for seed in range(options.seeds)
        for name, row in ROWS.items()
        for dataset in datasets
        if name in wanted and (row.supports_claim or seed == 0)
    ]
    for one in planned:
        images = one.dataset.info.splits[schema.TRAIN].images
        if (one.row.photographs or 0) > images:
            raise UserError(
                f"`rows`: {one.name} needs {one.row.photographs:,} training images, and "
                f"{one.dataset.directory} has {images:,}: leave it out."
            )
        one.check()
    if "server" in options.tables and options.tables != PAPER_TABLES:  # it was asked for
        _check_references(datasets, options.split)
    return planned


def _check_references(datasets: Sequence[Dataset], split: str) -> None:
    for dataset in datasets:
        fewest = min(map(len, pipeline.captions(dataset.directory, split)))
        if fewest < REFERENCES[0]:
            raise UserError(
                f"`tables`: server needs {REFERENCES[0]} references of every image, and one of the "
                f"split {split!r} of {dataset.directory} has {fewest}: leave the table out."
            )


def make(planned: Sequence[PlannedRun], jobs: int) -> dict[str, str]:
    """Makes all runs that are not finished; returns a sentence for each that failed, by name."""
    waiting = [one for one in planned if not one.is_finished]
    finished = sum(one.cost for one in planned if one.is_finished)
    total = finished + sum(one.cost for one in waiting)
    bar = Progress(name="tables", total=round(total), initial=round(finished), unit=" epochs")
    failed, at_work = {}, []
    with bar, _ended_together(at_work):
        while waiting or at_work:
            unfinished = {one.folder for one in (*waiting, *(work.planned for work in at_work))}
            for one in [one for one in waiting if one.initial not in unfinished]:
                if len(at_work) < jobs:
                    waiting.remove(one)
                    bar.say(f"{one}: {one.shown}")
                    at_work.append(_Work(one, jobs))
            time.sleep(_SECONDS)
            for work in [work for work in at_work if work.is_over()]:
                at_work.remove(work)
                bar.update(round(work.planned.cost))
                if not work.error:
                    continue
                failed[str(work.planned)] = work.error
                logging.error("%s: %s", work.planned, work.error)
                for one in [one for one in waiting if one.initial == work.planned.folder]:
                    waiting.remove(one)
                    failed[str(one)] = f"it begins with {work.planned}, which failed."
    return failed


class _Work:
    """A run that is being trained or evaluated by a process of its own."""

    def __init__(self, planned: PlannedRun, jobs: int):
        self.planned, self.error = planned, ""
        os.makedirs(planned.folder, exist_ok=True)
        self._begin = os.path.getsize(self._log) if os.path.exists(self._log) else 0
        # What a platform says of its one run is none of many.
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("AIP_")}
        self._environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        if jobs > 1:  # or each would take all cores
            threads = max(1, (os.cpu_count() or 1) // jobs)
            self._environment.setdefault("TF_NUM_INTRAOP_THREADS", str(threads))
        self._commands = planned.commands(planned.data, planned.runs)
        self.process = None
        try:
            if planned.row.photographs:
                parts = pathlib.Path(planned.parts)
                subsets.make(planned.dataset.directory, planned.row.photographs, parts)
            self._start()
        except (UserError, OSError) as error:  # the other runs go on
            self.error = program.sentence(error)

    def is_over(self) -> bool:
        """Whether all commands are through, or one failed; starts the next one."""
        if self.process is None:
            return True
        if (code := self.process.poll()) is None:
            return False
        if code:
            self.error = self._reason(code)
        elif self._commands:
            self._start()
            return False
        return True

    def _start(self) -> None:
        command = [sys.executable, "-m", *self._commands.pop(0)]
        with open(self._log, "a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)

    def _reason(self, code: int) -> str:
        if code == RESTART_ME:
            return "it was stopped; the same command goes on."
        lines = pathlib.Path(self._log).read_bytes()[self._begin :].decode(errors="replace")
        lines = lines.splitlines()
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return errors[-1] if errors else f"it ended with code {code}: see {self._log}."

    @property
    def _log(self) -> str:
        return os.path.join(self.planned.folder, LOG)


@contextlib.contextmanager
def _ended_together(at_work: Sequence[_Work]) -> Iterator[None]:
    """Asks the processes to stop where this one is: they save their state before."""

    def stop(number: int, _) -> NoReturn:
        sys.exit(RESTART_ME if number == signal.SIGTERM else program.INTERRUPTED)

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as in a shell's background
        numbers.append(signal.SIGINT)
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        processes = [work.process for work in at_work if work.process]
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()

"""Batch jobs as Apache Beam pipelines: every item through one `DoFn`, on any runner.

The results of an item are files, not pipeline output: some runners drop output silently, so a job
counts its files when the pipeline has ended.
"""

import contextlib
import itertools
import json
import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from mrnn_tf import files
from mrnn_tf.errors import UserError
from mrnn_tf.progress import Progress


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


with _quietly():  # Beam warns of every cloud that it was not installed for
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from apache_beam.runners.runner import create_runner

_COUNT_ENDING = ".count"
_SECONDS = 1.0  # between two looks at what is done
_UNLISTED_RUNNERS = {"DaskRunner": "apache_beam.runners.dask.dask_runner.DaskRunner"}


def parse_options(argv: Sequence[str]) -> PipelineOptions:
    """Beam's options from flags; a flag that Beam does not know is refused."""
    for before, word in itertools.pairwise(["=", *argv]):
        if not word.startswith("-") and ("=" in before or not before.startswith("--")):
            raise UserError(f"Unexpected argument {word}.")
    options = PipelineOptions(list(argv))
    standard = options.view_as(StandardOptions)
    standard.runner = _UNLISTED_RUNNERS.get(standard.runner, standard.runner)
    try:
        if standard.runner is not None:
            create_runner(standard.runner)  # Beam knows the flags of a runner that is imported
    except ValueError as error:  # there is no such runner
        raise UserError(str(error)) from error
    except ImportError as error:
        raise UserError(f"The runner {standard.runner} is not installed: {error}") from error
    known = options.get_all_options(drop_default=True)
    received = options.get_all_options(drop_default=True, retain_unknown_options=True)
    if unknown := sorted(set(received) - set(known)):
        raise UserError(f"Unknown flag --{unknown[0]}: neither the program nor Apache Beam has it.")
    return options


class Counter:
    """Counts what a worker has done of an item, in a small file that `counted` reads.

    Example:

        with batch.Counter(tf.io.gfile.join(work, "part-1")) as counter:
            counter.add(len(images))
    """

    def __init__(self, path: str):
        self._path, self._count, self._written_at = path + _COUNT_ENDING, 0, time.monotonic()

    def __enter__(self) -> "Counter":
        return self

    def __exit__(self, error_type: type | None, *_) -> None:
        if error_type is None:
            self._write(is_final=True)

    def add(self, number: int) -> None:
        self._count += number
        if time.monotonic() - self._written_at > _SECONDS:
            self._write(is_final=False)

    def _write(self, is_final: bool) -> None:
        files.write_json(self._path, [self._count, is_final])
        self._written_at = time.monotonic()


def counted(folder: str) -> Callable[[], int]:
    """What adds up the counts in a folder; final ones are read once."""
    finals: dict[str, int] = {}

    def count() -> int:
        running = 0
        for name in tf.io.gfile.listdir(folder):
            if name.endswith(_COUNT_ENDING) and name not in finals:
                try:
                    with tf.io.gfile.GFile(tf.io.gfile.join(folder, name)) as file:
                        number, is_final = json.loads(file.read())
                except (tf.errors.OpError, ValueError):
                    continue  # it is being replaced, on a store where that is no single step
                if is_final:
                    finals[name] = number
                else:
                    running += number
        return sum(finals.values()) + running

    return count


def run(
    items: Sequence,
    do_fn: beam.DoFn,
    options: PipelineOptions,
    done: Callable[[], int],
    total: int,
    unit: str,
) -> None:
    """Runs the pipeline to its end, showing how much is `done`, as `counted` says, of `total`.

    The default runner works in this process and downloads nothing, unlike Beam's own default.
    """
    name = options.view_as(StandardOptions).runner
    runner = FnApiRunner() if name in (None, "DirectRunner") else name
    # What a worker of this process raises is raised here: Beam need not log it too.
    logging.getLogger("apache_beam.runners.common").setLevel(logging.CRITICAL)
    try:
        with _progress(done, total, unit), beam.Pipeline(runner, options) as pipeline:
            _ = pipeline | "Items" >> beam.Create(items) | "Work" >> beam.ParDo(do_fn)
    except RuntimeError as error:  # Beam's form of whatever a worker raised
        logging.debug("Where it happened:", exc_info=True)
        raise UserError(f"A worker failed: {str(error).strip().splitlines()[-1]}") from error


@contextlib.contextmanager
def _progress(done: Callable[[], int], total: int, unit: str) -> Iterator[None]:
    stop = threading.Event()

    def watch(bar: Progress) -> None:
        while not stop.wait(_SECONDS):
            bar.update(done() - bar.n)

    with Progress(total=total, initial=done(), unit=f" {unit}") as bar:
        thread = threading.Thread(target=watch, args=(bar,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        bar.update(done() - bar.n)

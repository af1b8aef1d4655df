"""Batch jobs as Apache Beam pipelines: every item through one `DoFn`, on any runner.

The results of an item are files, not pipeline output: some runners drop output silently, so a job
counts its files when the pipeline has ended.
"""

import contextlib
import itertools
import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence

from tqdm import tqdm

from mrnn_tf.errors import UserError


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


def run(
    items: Sequence,
    do_fn: beam.DoFn,
    options: PipelineOptions,
    done: Callable[[], int],
    total: int,
    unit: str,
) -> None:
    """Runs the pipeline to its end, showing how much is `done` of `total`.

    The default runner works in this process and downloads nothing, unlike Beam's own default.
    """
    name = options.view_as(StandardOptions).runner
    runner = FnApiRunner() if name in (None, "DirectRunner") else name
    try:
        with _progress(done, total, unit), beam.Pipeline(runner, options) as pipeline:
            _ = pipeline | "Items" >> beam.Create(items) | "Work" >> beam.ParDo(do_fn)
    except RuntimeError as error:  # Beam's form of whatever a worker raised
        logging.debug("Where it happened:", exc_info=True)
        raise UserError(f"A worker failed: {str(error).strip().splitlines()[-1]}") from error


@contextlib.contextmanager
def _progress(done: Callable[[], int], total: int, unit: str) -> Iterator[None]:
    """A bar on a terminal, a line now and then in a log."""
    stop = threading.Event()

    def watch(bar: tqdm) -> None:
        while not stop.wait(10 if bar.disable else 1):
            bar.n = done()
            bar.refresh()
            if bar.disable:
                logging.info("%d of %d %s", bar.n, total, unit)

    with tqdm(total=total, unit=f" {unit}", disable=None) as bar:
        thread = threading.Thread(target=watch, args=(bar,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        bar.n = done()  # shown when the bar closes

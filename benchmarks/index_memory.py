"""The memory of a process that builds an index, and of one that loads and searches it.

    python benchmarks/index_memory.py --job_dir runs/best --data data/flickr8k --images 1000000

Images beyond those of the split are resampled as in benchmarks/retrieval.py, in a process of their
own that writes the parts of an index. Then one process builds the index of them as `python -m
export.index` does (arrays, servable, SavedModel, and its check in a fresh process), and another one
loads the SavedModel and searches by one sentence and by 16. For each the largest resident set is
printed, what it takes together with the processes that it starts, and how long it took.
"""

import contextlib
import dataclasses
import glob
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable

import numpy as np
import psutil
from absl import app, flags
from mixtures import mixtures, queries

_JOB_DIR = flags.DEFINE_string("job_dir", None, "A trained run.", required=True)
_DATA = flags.DEFINE_string("data", None, "Its records.", required=True)
_IMAGES = flags.DEFINE_integer("images", 1_000_000, "Number of images.")
_FOLDER = flags.DEFINE_string("folder", None, "Where files are made; a temporary one by default.")
_IN_A_PART = 10_000  # images


def main(_) -> None:
    with tempfile.TemporaryDirectory(dir=_FOLDER.value) as folder:
        _told("resampling", _resample, _JOB_DIR.value, _DATA.value, _IMAGES.value, folder)
        _told("building", _build, _JOB_DIR.value, folder)
        _told("loading and searching", _search, folder)


def _told(name: str, work: Callable, *given) -> None:
    """Runs work in a process of its own and prints what it took."""
    began = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result, together = pool.apply_async(_measured, (work, *given)), 0.0
        while not result.ready():
            together = max(together, _together())
            result.wait(0.5)
        own = result.get()
    seconds = time.perf_counter() - began
    print(f"{name}: {own:.1f} GB, together {together:.1f} GB, {seconds:,.0f} s", flush=True)


def _measured(work: Callable, *given) -> float:
    work(*given)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _together() -> float:
    """What all processes that were started take now; pages that several share count once."""
    sizes = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            sizes.append(process.memory_full_info().pss)
    return sum(sizes) / 2**30


def _resample(job_dir: str, data: str, count: int, folder: str) -> None:
    from export import index_parts
    from mrnn_tf import files, schema
    from mrnn_tf.retrieval import marginal
    from mrnn_tf.retrieval.index import Entries, Texts
    from mrnn_tf.retrieval.scoring import Scorer
    from mrnn_tf.retrieval.search import SentenceTable
    from mrnn_tf.run import Run
    from mrnn_tf.split import Split

    run = Run.load(job_dir)
    scorer, split = Scorer(run.network.model), Split.read(run, data, schema.VAL)
    training = Split.read(run, data, schema.TRAIN).features
    sample = scorer.project(training[marginal.sample_rows(len(training), 5000, 0)])
    np.save(os.path.join(folder, "sample.npy"), sample)
    images, none = mixtures(scorer, split.features, count)[0], Texts.of([])
    table = SentenceTable.of(scorer, np.zeros((0, 1), np.int32), sample)
    more = {f"skipped.{name}": array for name, array in vars(none).items()}
    more["read"] = np.zeros(2, np.int64)
    for first in range(0, count, _IN_A_PART):
        rows = range(first, min(first + _IN_A_PART, count))
        ids = Texts.of([b"%d" % row for row in rows])
        entries = Entries(ids, images[rows], none, *table, owners=np.zeros(0, np.int32))
        path = os.path.join(folder, f"{first:09d}{index_parts.PART_ENDING}")
        files.write_arrays(path, **entries.arrays(), **more)
    with open(os.path.join(folder, "queries"), "w") as file:
        file.write("\n".join(queries(split)[:16]))


def _build(job_dir: str, folder: str) -> None:
    from export import index_check, index_parts, saved_model
    from export.index import INDEX_FOLDER, _assemble
    from export.index_signatures import IndexServable
    from export.options import IndexSettings
    from mrnn_tf import memory
    from mrnn_tf.run import Run

    run = Run.load(job_dir)
    sample = np.load(os.path.join(folder, "sample.npy"))
    paths = sorted(glob.glob(os.path.join(folder, f"*{index_parts.PART_ENDING}")))
    entries, _ = index_parts.collect([index_parts.Part("", path) for path in paths], None)
    index, settings = _assemble(run, entries, sample, 0), IndexSettings()
    del entries
    memory.give_back()
    servable = IndexServable(run, index, settings)
    index = servable.index
    saved_model.write(
        servable,
        run,
        {"index": dataclasses.asdict(index.header), "settings": settings.to_dict()},
        index_check.expected,
        os.path.join(folder, "1"),
        add=lambda extra: index.save(os.path.join(extra, INDEX_FOLDER)),
    )


def _search(folder: str) -> None:
    from mrnn_tf.photo_index import PhotoIndex

    with open(os.path.join(folder, "queries")) as file:
        sentences = file.read().splitlines()
    index = PhotoIndex.load(os.path.join(folder, "1"))
    if not index.search(sentences[0]) or not all(index.search(sentences)):
        raise ValueError("The index finds nothing.")


if __name__ == "__main__":
    app.run(main)

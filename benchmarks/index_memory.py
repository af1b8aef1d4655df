"""The memory of a process that builds an index, and of one that loads and searches it.

    python benchmarks/index_memory.py --job_dir runs/best --data data/flickr8k --images 1000000

Images beyond those of the split are resampled as in benchmarks/retrieval.py, in a process of their
own. Then one process builds the index as `python -m export.index` does (arrays, servable,
SavedModel, and its check in a fresh process), and another one loads the SavedModel and searches by
one sentence and by 16. For each the largest resident set is printed, that of the process itself and
that of the one that it starts, and how long it took.
"""

import dataclasses
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable

import numpy as np
from absl import app, flags
from mixtures import mixtures, queries

_JOB_DIR = flags.DEFINE_string("job_dir", None, "A trained run.", required=True)
_DATA = flags.DEFINE_string("data", None, "Its records.", required=True)
_IMAGES = flags.DEFINE_integer("images", 1_000_000, "Number of images.")
_FOLDER = flags.DEFINE_string("folder", None, "Where files are made; a temporary one by default.")


def main(_) -> None:
    with tempfile.TemporaryDirectory(dir=_FOLDER.value) as folder:
        _told("resampling", _resample, _JOB_DIR.value, _DATA.value, _IMAGES.value, folder)
        _told("building", _build, _JOB_DIR.value, folder)
        _told("loading and searching", _search, folder)


def _told(name: str, work: Callable, *given) -> None:
    """Runs work in a process of its own and prints what it took."""
    began = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        own, started = pool.apply(_measured, (work, *given))
    seconds = time.perf_counter() - began
    print(f"{name}: {own:.1f} GB and {started:.1f} GB, {seconds:,.0f} s", flush=True)


def _measured(work: Callable, *given) -> list[float]:
    work(*given)
    both = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return [resource.getrusage(who).ru_maxrss / 2**20 for who in both]


def _resample(job_dir: str, data: str, count: int, folder: str) -> None:
    from mrnn_tf import schema
    from mrnn_tf.retrieval import marginal
    from mrnn_tf.retrieval.scoring import Scorer
    from mrnn_tf.run import Run
    from mrnn_tf.split import Split

    run = Run.load(job_dir)
    scorer, split = Scorer(run.network.model), Split.read(run, data, schema.VAL)
    training = Split.read(run, data, schema.TRAIN).features
    sample = scorer.project(training[marginal.sample_rows(len(training), 5000, 0)])
    np.save(os.path.join(folder, "images.npy"), mixtures(scorer, split.features, count)[0])
    np.save(os.path.join(folder, "sample.npy"), sample)
    with open(os.path.join(folder, "queries"), "w") as file:
        file.write("\n".join(queries(split)[:16]))


def _build(job_dir: str, folder: str) -> None:
    from export import index_check, saved_model
    from export.index import INDEX_FOLDER, _assemble
    from export.index_signatures import IndexServable
    from export.options import IndexSettings
    from mrnn_tf.retrieval.index import Entries, Texts
    from mrnn_tf.retrieval.scoring import Scorer
    from mrnn_tf.retrieval.search import SentenceTable
    from mrnn_tf.run import Run

    run = Run.load(job_dir)
    images = np.load(os.path.join(folder, "images.npy"), mmap_mode="r")
    sample = np.load(os.path.join(folder, "sample.npy"))
    none = SentenceTable.of(Scorer(run.network.model), np.zeros((0, 1), np.int32), sample)
    ids = Texts.of([b"%d" % row for row in range(len(images))])
    entries = Entries(ids, images, Texts.of([]), *none, owners=np.zeros(0, np.int32))
    index, settings = _assemble(run, [entries], sample, 0), IndexSettings()
    saved_model.write(
        IndexServable(run, index, settings),
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

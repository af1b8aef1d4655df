"""Single bits are flipped in every kind of file that the chain writes and reads again.

Every flip is refused by a sentence that names the file, or the result is the same. Files that
cannot change a result are not here: no program reads report.html, tuning.json, tuning.svg and
fingerprint.pb (which is checked all the same); the curves of a report come from TensorBoard's
logs, whose records have checksums of their own; manifests of shards are written again before they
are read. What users bring (photographs, captions.jsonl, features) has no checksums of ours.
"""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tiny

from mrnn_tf import checksums, files, schema
from mrnn_tf.captioner import Captioner
from mrnn_tf.data import records, shards
from mrnn_tf.data.features import FeatureTable
from mrnn_tf.data.listing import CaptionedImage
from mrnn_tf.errors import UserError
from mrnn_tf.metrics import coco, nbest
from mrnn_tf.retrieval.index import Index
from mrnn_tf.run import Run
from mrnn_tf.split import Split
from mrnn_tf.verification import verify
from serving.served_version import warmup_requests
from trainer import train
from trainer.checkpoints import Checkpoints

FEW, MANY = 1, 50


@pytest.fixture(params=[FEW, pytest.param(MANY, marks=pytest.mark.slow)], scope="module")
def flips(request):
    """How many bits are flipped in a file, one after the other."""
    return request.param


def check(path: Path, read, flips: int, reason: type = UserError) -> None:
    """Flips bits of a file; `read` must refuse it by its name, or give what it gave before."""
    whole, rng = path.read_bytes(), random.Random(path.name)
    before, refused = read(), 0
    for _ in range(flips):
        damaged, bit = bytearray(whole), rng.randrange(8 * len(whole))
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            np.testing.assert_equal(read(), before, f"bit {bit} of {path}")
        except reason as error:
            refused += 1
            name = path.name.partition(".index")[0].partition(".data-")[0]
            assert name in str(error), f"bit {bit} of {path}: {error}"
    path.write_bytes(whole)
    np.testing.assert_equal(read(), before)
    assert refused or flips == FEW or path.suffix == ".index", path


@pytest.fixture
def data(tiny_data, tmp_path):
    return shutil.copytree(tiny_data, tmp_path / "data")


@pytest.fixture
def job(tiny_job, tmp_path):
    return shutil.copytree(tiny_job, tmp_path / "job")


@pytest.fixture(scope="module")
def run(tiny_job):
    return Run.load(tiny_job)


@pytest.mark.parametrize("name", ["dataset.json", "vocabulary.txt"])
def test_the_facts_of_a_dataset(data, flips, name):
    options = train.TrainOptions(data=str(data), job_dir="none")

    def read():
        config, vocabulary = train.plan(options, records.DatasetInfo.load(str(data)))
        return config, vocabulary.words

    check(data / name, read, flips)


def test_shards(data, run, flips):
    def read():
        splits = [Split.read(run, str(data), name) for name in ("train", "val")]
        return [(split.ids, split.captions, split.features) for split in splits]

    check(data / "train-00001-of-00002.tfrecord", read, flips)
    check(data / "val-00000-of-00002.tfrecord", read, flips)


def test_a_shard_and_its_report_while_a_dataset_is_made(tmp_path, flips):
    np.save(tmp_path / "f.npy", np.eye(4, dtype=np.float32))
    (tmp_path / "n.txt").write_text("a\nb\nc\nd\n")
    table = FeatureTable([str(tmp_path / "f.npy")], str(tmp_path / "n.txt"))
    listing = [CaptionedImage(name, "train", ("a dog",)) for name in "abcd"]
    (tmp_path / "data").mkdir()
    work = str(tmp_path / "data" / ".work")
    [shard] = shards.plan(listing, str(tmp_path / "data"), work, 9, 0, table)
    shards.write_shard(shard, [schema.FEATURES], None, table)
    check(Path(shard.report), lambda: shards.collect([shard]), flips)
    check(Path(shard.output), lambda: shards.collect([shard]), flips)


def contents(run: Run) -> tuple:
    return run.config, run.vocabulary.words, run.step, run.fingerprint


@pytest.mark.parametrize("pattern", ["config.json", "vocabulary.txt", "checkpoints/best-*"])
def test_a_run(job, flips, pattern):
    for path in sorted(job.glob(pattern)):
        check(path, lambda: contents(Run.load(str(job))), flips)


def test_what_a_stopped_run_goes_on_from(tmp_path, flips):
    def open_state():
        weight = tf.Variable(tf.random.stateless_normal([40, 50], [1, 2]))
        iterator = iter(tf.data.Dataset.range(100).shuffle(50, seed=1))
        state = {"network": tf.train.Checkpoint(weight=weight)}
        return weight, iterator, Checkpoints(str(tmp_path), state, iterator)

    def read():
        weight, iterator, checkpoints = open_state()
        checkpoints.restore()
        return weight.numpy(), [int(next(iterator)) for _ in range(99)]

    weight, iterator, checkpoints = open_state()
    weight.assign(2 * weight), next(iterator)
    checkpoints.save(7)
    assert len(read()[1]) == 99
    for path in sorted(tmp_path.glob("*-00000007.*")):
        check(path, read, flips)


MODEL_FILES = (
    schema.SAVED_MODEL_FILE, "fingerprint.pb", "assets/config.json", "assets/vocabulary.txt",
    schema.CHECKSUMS_FILE, schema.WARMUP_FILE,
    "variables/variables.index", "variables/variables.data-00000-of-00001",
)  # fmt: skip


@pytest.mark.parametrize("name", MODEL_FILES)
def test_a_version(models, tmp_path, flips, name):
    version = shutil.copytree(models / "plain" / "1", tmp_path / "1")
    check(version / name, lambda: contents(Run.from_saved_model(str(version))), flips)


@pytest.mark.slow
def test_a_version_as_python_and_servers_load_it(models, tmp_path):
    version = shutil.copytree(models / "plain" / "1", tmp_path / "1")
    features = np.linspace(0, 1, tiny.FEATURE_SIZE)

    def read():
        requests = [request.SerializeToString() for request in warmup_requests(str(version))]
        return requests, Captioner.load(version).caption(features)

    check(version / "variables/variables.data-00000-of-00001", read, FEW, UserError)


def test_an_index(tiny_index, tmp_path, flips):
    folder = shutil.copytree(tiny_index / "assets.extra" / "index", tmp_path / "index")

    def read():
        index = Index.load(str(folder))
        return index.header, {name: array.copy() for name, array in index.arrays().items()}

    assert len(list(folder.iterdir())) > 10
    for path in sorted(folder.iterdir()):
        check(path, read, flips)


def test_parts_and_blocks_of_stopped_jobs(tmp_path, flips):
    path = tmp_path / "part.npz"
    rng = np.random.default_rng(0)
    files.write_arrays(str(path), words=rng.integers(0, 9, [20, 5]), own=rng.random(20))
    check(path, lambda: files.read_arrays(str(path)), flips)


def test_what_an_evaluation_wrote(tmp_path, flips):
    names = ["results.json", "references.json", "nbest.json", "scores.json"]
    results, references, lists, scores = (tmp_path / name for name in names)
    coco.write_results(str(results), {1: "a dog", 2: "a cat"})
    coco.write_references(str(references), {1: ["a dog", "one dog"], 2: ["a cat"]})
    entry = {"image_id": 1, "captions": ["a dog"], "log_probs": [-1.5]}
    files.write_json(str(lists), [entry])
    checksums.write(str(scores), {"step": 3}, str(tmp_path), names[:3])
    check(results, lambda: coco.read_results(str(results)), flips)
    check(references, lambda: coco.read_references(str(references)), flips)
    check(lists, lambda: nbest.read_n_best(str(lists)), flips)
    check(scores, lambda: coco.read_results(str(results)), flips)


def test_verify_finds_what_is_not_read_otherwise(data, job, models, tmp_path):
    version = shutil.copytree(models / "plain" / "1", tmp_path / "1")
    places = [str(data), str(job), str(version)]
    verify(*places)
    iterator = max(job.glob("checkpoints/iterator-*.data-*"), key=lambda path: path.stat().st_size)
    for path in (
        data / "val-00001-of-00002.tfrecord",
        iterator,
        *version.glob("variables/*.data*"),
    ):
        check(path, lambda: verify(*places), 3)

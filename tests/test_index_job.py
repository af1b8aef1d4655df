"""`python -m export.index` as a user runs it: real Beam, real processes, real versions."""

import dataclasses
import json
import os
import pickle
import shutil
import time
from pathlib import Path

import numpy as np
import programs
import pytest
import tensorflow as tf
import tiny

from export import check, saved_model
from export import index as job
from export.index import IndexOptions, build_index, variable_bytes
from mrnn_tf import batch
from mrnn_tf.config import BeamSearch
from mrnn_tf.data import records
from mrnn_tf.inference import Inference
from mrnn_tf.retrieval.index import NO_IMAGE, Index
from mrnn_tf.run import Run, build

FOLDER = "assets.extra/index"
SMALL = ("--sample=10", "--k=5", "--beam=3", "--neighbours=4")


@pytest.fixture
def make(tmp_path, models):
    def run(*arguments):
        model = () if "--model" in arguments else ("--model", models / "plain" / "1")
        return programs.run(tmp_path, "export.index", *model, *arguments)

    return run


@pytest.fixture(scope="module")
def train_index(models, tiny_data, tmp_path_factory):
    """An index of the training images only."""
    folder = tmp_path_factory.mktemp("train_index")
    done = programs.run(
        folder, "export.index", "--model", models / "plain" / "1", "--data", tiny_data,
        "--splits=train", "--output", folder / "index", *SMALL,
    )  # fmt: skip
    assert done.code == 0, done.err
    return folder / "index" / "1"


def load(version: Path) -> Index:
    return Index.load(str(version / FOLDER))


def assert_equal(some: dict, others: dict):
    assert some.keys() == others.keys()
    for name, array in some.items():
        np.testing.assert_array_equal(array, others[name], name)


def test_a_version_holds_what_the_records_hold(tiny_index, models):
    index = load(tiny_index)
    run = Run.from_saved_model(str(models / "plain" / "1"))
    assert index.header.model == run.fingerprint
    assert (index.header.images, index.header.sentences, index.header.sample) == (36, 108, 10)
    assert index.header.encoder == tiny.IDENTITY
    assert list(index.ids)[:2] == [b"train-0.jpg", b"train-2.jpg"]
    assert index.captions[3].decode() == tiny.captions_of(2, 2)[0]
    assert index.owners.tolist() == np.repeat(np.arange(36), 3).tolist()
    facts = json.loads((tiny_index / "assets" / "config.json").read_text())
    assert facts["settings"]["k"] == 5 and facts["index"]["images"] == 36
    assert Run.from_saved_model(str(tiny_index)).fingerprint == run.fingerprint
    assert os.listdir(tiny_index.parent) == ["1"]


def test_the_memory_of_a_server_is_told(tiny_index):
    module = tf.Module()
    module.numbers, module.flags = tf.Variable(tf.zeros([3, 5])), [tf.Variable([1, 2])]
    module.more = {"texts": tf.Variable(["dog", ""]), "half": tf.Variable(tf.zeros(4, tf.half))}
    assert variable_bytes(module) == 60 + 8 + 2 * 24 + 3 + 8
    loaded = tf.saved_model.load(str(tiny_index))
    assert loaded.arrays["vectors"].dtype == tf.bfloat16


def test_more_and_less_make_a_new_version(make, train_index, tiny_index, tiny_data, tmp_path):
    (tmp_path / "more.txt").write_text("a red dog runs\n\nGröße\n")
    (tmp_path / "gone.txt").write_text("train-0.jpg\ntrain-5.jpg\n")
    done = make(
        "--append_to", train_index, "--data", tiny_data, "--splits=val", "--sentences",
        tmp_path / "more.txt", "--delete", tmp_path / "gone.txt", "--output", tmp_path / "index",
        *SMALL[1:],
    )  # fmt: skip
    assert done.code == 0, done.err
    index, every = load(tmp_path / "index" / "1"), load(tiny_index)
    known = every.without([b"train-0.jpg", b"train-5.jpg"])
    assert_equal(
        {k: v for k, v in known.arrays().items() if "." not in k},
        {k: v[: len(getattr(known, k))] for k, v in index.arrays().items()
         if k not in ("mean", "sample") and "." not in k},
    )  # fmt: skip
    assert list(index.ids) == list(known.ids)
    assert list(index.captions)[-2:] == [b"a red dog runs", "Größe".encode()]
    assert index.owners[-2:].tolist() == [NO_IMAGE, NO_IMAGE]
    np.testing.assert_array_equal(index.sample, every.sample)
    loaded = tf.saved_model.load(str(tmp_path / "index" / "1"))
    found = loaded.signatures["search_images"](sentences=tf.constant(["a red dog"]))
    assert b"train-0.jpg" not in found["ids"].numpy()


def test_an_index_has_one_kind_of_marginal(models, tiny_index, tmp_path):
    index, model = load(tiny_index), str(models / "plain" / "1")
    header = dataclasses.replace(index.header, likeliest=100)  # as of an earlier release
    earlier = dataclasses.replace(index, header=header, log_marginals=index.log_marginals - 1.0)
    earlier.save(str(tmp_path / FOLDER))
    options = IndexOptions(model=model, output="x", append_to=str(tmp_path), sentences="more.txt")
    old = job._load_old(options, Run.from_saved_model(model))
    np.testing.assert_allclose(old.log_marginals, index.log_marginals, atol=1e-4)


def test_a_folder_of_models_stands_for_its_newest(make, models, tiny_data, tmp_path):
    shutil.copytree(models / "mrnn" / "1", tmp_path / "models" / "2")  # would be refused
    shutil.copytree(models / "plain" / "1", tmp_path / "models" / "10")
    (tmp_path / "models" / "11.partial").mkdir()
    arguments = ["--model", tmp_path / "models", "--data", tiny_data, "--splits=val"]
    done = make(*arguments, "--reference_data", tiny_data, "--output", tmp_path / "index", *SMALL)
    assert done.code == 0, done.err
    run = Run.from_saved_model(str(models / "plain" / "1"))
    assert load(tmp_path / "index" / "1").header.model == run.fingerprint


def test_workers_read_the_sample_themselves(models, tiny_data, tiny_index, tmp_path, monkeypatch):
    class Sent(Exception):
        pass

    def send(parts, make_part, *_, **__):
        raise Sent(make_part)

    monkeypatch.setattr(batch, "run", send)
    places = {"model": str(models / "plain" / "1"), "data": tiny_data}
    for more in ({}, {"append_to": str(tiny_index)}):
        options = IndexOptions(**places, **more, output=str(tmp_path / "index"))
        with pytest.raises(Sent) as sent:
            build_index(options)
        [make_part] = sent.value.args
        assert len(pickle.dumps(make_part)) < 1000  # 24 images of 24 values would need more
        make_part.setup()
        assert make_part._sample.shape == ((10 if more else 24), 24)


def test_two_jobs_do_not_share_a_working_folder(models, tiny_data, tmp_path, monkeypatch):
    options = IndexOptions(
        model=str(models / "plain" / "1"), data=tiny_data, output=str(tmp_path / "index"), sample=10
    )

    class Began(Exception):
        pass

    def begin_another(*_, **__):
        monkeypatch.undo()
        with pytest.raises(ValueError, match=r"Another process is writing to .*\.work-"):
            build_index(options)
        raise Began

    monkeypatch.setattr(batch, "run", begin_another)
    with pytest.raises(Began):
        build_index(options)


def test_a_killed_job_is_finished_by_the_same_command(make, models, tmp_path):
    data = tiny.write(str(tmp_path / "data"), shards=6)
    output = tmp_path / "index"
    arguments = ["--data", data, "--output", output, *SMALL]
    killed = programs.start(tmp_path, "export.index", "--model", models / "plain" / "1", *arguments)
    deadline = time.monotonic() + 120
    while len(parts := list(output.glob(".work-*/*.npz"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.process.kill()
    killed.wait()
    assert 2 <= len(parts) < 12
    assert [name for name in os.listdir(output) if name.isdigit()] == []
    arrays = dict(np.load(parts[0]))
    arrays["ids.content"][:5] = np.frombuffer(b"other", np.uint8)
    np.savez(parts[0], **arrays)
    done = make(*arguments)
    assert done.code == 0, done.err
    assert "Finishing what" in done.err
    assert os.listdir(output) == ["1"]
    index = load(output / "1")
    assert any(each.startswith(b"other") for each in index.ids)  # it was not made again
    assert (len(index.ids), len(index.captions)) == (36, 108)


def test_remote_places(tmp_path, models, tiny_data):
    done = programs.run(tmp_path, "remote_index", models / "plain" / "1", tiny_data, *SMALL)
    assert done.code == 0, done.err
    assert "next: python -m serving.local --model_base_path ram://remote\n" in done.out
    assert done.out.endswith("36 images\nversions: 1\n")


def test_a_dataset_that_says_something_else_is_refused(make, tiny_data, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for path in Path(tiny_data).iterdir():
        (data / path.name).write_bytes(path.read_bytes())
    tiny.edit(data / "dataset.json", lambda facts: facts["splits"]["val"].update(captions=37))
    done = make("--data", data, "--output", tmp_path / "index", *SMALL)
    assert done.code == 1
    assert "'val' hold 12 images and 36 captions, but dataset.json says 12 and 37" in done.error
    assert not (tmp_path / "index" / "1").exists()


def test_an_image_whose_features_are_not_finite_is_refused_by_name(make, tmp_path):
    data = tiny.write(str(tmp_path / "data"))
    [path, *_] = records.DatasetInfo.load(data).shards(data, "val")
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(records.serialize("bad.jpg", ["a dog"], np.full(12, np.nan)))
    records.DatasetInfo.load(data).save(data)
    done = make("--data", data, "--output", tmp_path / "index", *SMALL)
    assert done.code == 1 and "holds NaN or infinity in the features of bad.jpg" in done.error


@pytest.mark.filterwarnings("ignore")  # Beam's own, at its import
def test_the_program_is_a_function(models, tiny_data, tiny_index, tmp_path):
    options = IndexOptions(
        model=models / "plain" / "1", data=tiny_data, output=tmp_path / "index",
        splits=("val",), sample=10, k=5, beam=3, neighbours=4,
    )  # fmt: skip
    directory = Path(build_index(options))
    index, every = load(directory), load(tiny_index)
    assert directory == tmp_path / "index" / "1" and index.header.images == 12
    np.testing.assert_array_equal(index.images, every.images[24:])
    with pytest.raises(ValueError, match=r"`IndexOptions\.k` must be .* at least 1; got 0"):
        dataclasses.replace(options, k=0)


BAD = {
    "model": ("--data DATA", "--model is required", True),
    "data": ("--model MODEL", "--data is required", False),
    "no model": ("--model nowhere --data DATA", "nowhere holds no assets/config.json", False),
    "no data": ("--data nowhere", "nowhere holds no dataset.json", False),
    "split": ("--data DATA --splits=train,dev", "has no split 'dev'; it has train, val", False),
    "flag": ("--data DATA --sauce x", "Unknown flag --sauce", False),
    "runner": ("--data DATA --runner=Sauce", "Unexpected pipeline runner: Sauce", False),
    "k": ("--data DATA --k=0", "k", False),
    "sentences": ("--sentences TEXT", "--sentences alone needs --reference_data", False),
    "no sentences": ("--data DATA --sentences nowhere.txt", "nowhere.txt", False),
    "delete": ("--data DATA --delete TEXT", "--delete goes with --append_to", False),
    "id": ("--append_to INDEX --delete TEXT", "names what is this, which", False),
    "sample": ("--append_to INDEX --data DATA --sample=3", "--sample was fixed when", False),
    "twice": ("--append_to INDEX --data DATA --splits=val", "val-0.jpg would be", False),
    "no index": ("--append_to nowhere --data DATA", "it is not an index", False),
    "other model": (
        "--model PHOTO --append_to INDEX --sentences TEXT", "is the index of another model", False
    ),
    "encoder": ("--model PHOTO --data DATA", "holds features of features:tiny:12, but", False),
    "no encoder": ("--data PICTURES --reference_data DATA", "holds images only, but", False),
    "reference": ("--model PHOTO --data PICTURES", "has no training images to take P(s)", False),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(models, tiny_data, tiny_index, tmp_path, case):
    arguments, sentence, bare = BAD[case]
    (tmp_path / "text.txt").write_text("what is this\n")
    places = {
        "MODEL": models / "plain" / "1", "PHOTO": models / "mrnn" / "1", "DATA": tiny_data,
        "INDEX": tiny_index, "TEXT": tmp_path / "text.txt", "PICTURES": tmp_path / "pictures",
    }  # fmt: skip
    if "PICTURES" in arguments:
        tiny.write_pictures(str(places["PICTURES"]))
    given = [places.get(word, word) for word in arguments.split()]
    if not bare and "--model" not in given:
        given += ["--model", places["MODEL"]]
    done = programs.run(tmp_path, "export.index", *given, "--output", tmp_path / "index")
    assert done.code == 1
    assert sentence in done.error
    assert not list((tmp_path / "index").glob("[0-9]*"))


def test_a_model_that_cannot_be_searched_is_refused(tiny_job, tiny_data, tmp_path, monkeypatch):
    monkeypatch.setattr(check, "check", lambda *_: None)  # it takes long
    run = Run.load(tiny_job)
    model = dataclasses.replace(run.config.model, variant="vis_in_rnn")
    config = dataclasses.replace(run.config, model=model)
    other = Run(config, run.vocabulary, build(config), 1)
    saved_model.export_run(
        other, Inference(other, None, BeamSearch(beam=1)), str(tmp_path / "mrnn" / "1")
    )
    done = programs.run(
        tmp_path, "export.index", "--model", tmp_path / "mrnn" / "1", "--data", tiny_data,
        "--output", tmp_path / "index",
    )  # fmt: skip
    assert done.code == 1 and "its recurrence sees the image" in done.error
    assert not (tmp_path / "index").exists()


@pytest.mark.slow
def test_processes_make_the_same(make, tiny_data, tiny_index, tmp_path):
    flags = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    done = make("--data", tiny_data, "--output", tmp_path / "index", *SMALL, *flags)
    assert done.code == 0, done.err
    assert_equal(load(tmp_path / "index" / "1").arrays(), load(tiny_index).arrays())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_of_dask_makes_the_same(make, tiny_data, tiny_index, tmp_path):
    import distributed

    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        done = make(
            "--data", tiny_data, "--output", tmp_path / "index", *SMALL, "--runner=DaskRunner",
            f"--dask_client_address={cluster.scheduler_address}", "--dask_npartitions=4",
        )  # fmt: skip
    assert done.code == 0, done.err
    assert_equal(load(tmp_path / "index" / "1").arrays(), load(tiny_index).arrays())

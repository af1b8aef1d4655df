"""`python -m export.index --store milvus`: what a job leaves in the database, and who finds it."""

import json
import logging
import time
from pathlib import Path

import numpy as np
import programs
import pytest
import tiny

from export.index import build_index
from export.options import IndexOptions
from mrnn_tf.captioner import Captioner
from mrnn_tf.data import records
from mrnn_tf.errors import UserError
from mrnn_tf.photo_index import PhotoIndex
from mrnn_tf.retrieval.index import Index
from mrnn_tf.retrieval.milvus import MilvusStore

pytestmark = pytest.mark.filterwarnings("ignore")  # Beam's own, at its import


@pytest.fixture(scope="module")
def model(models):
    return str(models / "plain" / "1")


@pytest.fixture(scope="module")
def captioner(model):
    return Captioner.load(model)


@pytest.fixture
def fill(model, tiny_data, tmp_path):
    def run(**options):
        given = {"model": model, "data": tiny_data, "uri": str(tmp_path / "photos.db")}
        return build_index(IndexOptions(store="milvus", **given | options))

    return run


@pytest.fixture(scope="module")
def filled(model, tiny_data, tmp_path_factory):
    """A store with all images of the tiny dataset; every other one is of the album 2024."""
    folder = tmp_path_factory.mktemp("store")
    lines = [
        {"id": f"{split}-{i}.jpg", "album": str(2023 + i % 2), "number": i, "captions": ["no"]}
        for split, count in (("train", 24), ("val", 12))
        for i in range(count)
    ]
    lines.append({"image": "elsewhere.jpg", "album": None})
    (folder / "albums.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = {"metadata": str(folder / "albums.jsonl"), "uri": str(folder / "photos.db")}
    build_index(IndexOptions(store="milvus", model=model, data=tiny_data, **options))
    return options["uri"]


def rows(path: str, *fields: str) -> dict[str, dict]:
    """The rows of a collection by their ids."""
    with MilvusStore.open(path) as store:
        found = store._client.query(
            "mrnn_index", filter='id != ""', output_fields=["id", *fields], limit=1000
        )
        return {row["id"]: row for row in found}


def test_a_collection_holds_what_the_records_hold(filled, tiny_index):
    index = Index.load(str(tiny_index / "assets.extra" / "index"))
    found = rows(filled, "projection", "captions", "album", "number")
    assert found.keys() == {name.decode() for name in index.ids}
    for image_id, projection in zip(index.ids, index.images, strict=True):
        np.testing.assert_allclose(found[image_id.decode()]["projection"], projection, rtol=1e-6)
    row = found["val-5.jpg"]
    assert row["captions"] == tiny.captions_of(5 % 3, 5 % 4)
    assert (row["album"], row["number"]) == ("2024", 5)
    with MilvusStore.open(filled) as store:
        assert store.facts["model"] == index.header.model
        assert store.facts["encoder"] == tiny.IDENTITY and store.facts["size"] == "24"
        assert store.facts["vocabulary"] == index.header.vocabulary
        notes = store._client.query("mrnn_index_facts", filter='key != ""', limit=1000)
        assert len(notes) == len(store.facts)  # those of the job are gone


def test_the_store_finds_what_the_index_finds(filled, captioner, tiny_index):
    asked = ["a red dog", "there is a blue boat here", "zxqv", "", tiny.captions_of(1, 2)[0]]
    index, stored = PhotoIndex.load(tiny_index), PhotoIndex.load(filled, captioner)
    try:
        assert stored.search(asked[0], k=1) == stored.search(asked, k=1)[0]
        expected, found = index.search(asked), stored.search(asked, k=5)
        for own, wanted in zip(found, expected, strict=True):
            assert [match.path for match in own] == [match.path for match in wanted]
            scores = [match.score for match in wanted]
            assert [match.score for match in own] == pytest.approx(scores, rel=1e-4)
        assert [len(own) for own in found] == [5, 5, 0, 0, 5]
        assert len(stored.search("a red dog")) == 10
        album = stored.search("a red dog", k=100, filter='album == "2024" and number > 10')
        numbers = {int(match.path.split("-")[1].split(".")[0]) for match in album}
        assert numbers == {11, 13, 15, 17, 19, 21, 23}
        for ask in (stored.similar, stored.sentences, stored.rerank):
            with pytest.raises(UserError, match="is searched by sentences only"):
                ask(np.zeros(12, np.float32))
        with pytest.raises(UserError, match="refused the filter"):
            stored.search("a red dog", filter="album ==")
        with pytest.raises(UserError, match="`k` must be at least 1"):
            stored.search("a red dog", k=0)
    finally:
        stored.close()


def test_another_model_is_refused(filled, models, fill):
    other = Captioner.load(models / "mrnn" / "1")
    with pytest.raises(UserError, match=r"photos.db: The index was made with the model"):
        PhotoIndex.load(filled, other)
    with pytest.raises(UserError, match="`captioner` is required"):
        PhotoIndex.load(filled)
    data = Path(__file__).parent  # is not read
    with pytest.raises(UserError, match=r"photos.db: The index was made with the model"):
        fill(model=str(models / "mrnn" / "1"), data=None, uri=filled, delete=str(data / "tiny.py"))


def test_images_come_and_go_without_a_new_version(fill, tiny_data, tmp_path, caplog):
    path = fill(splits=("train",))
    assert len(rows(path)) == 24
    (tmp_path / "gone.txt").write_text("train-0.jpg\ntrain-5.jpg\nnever.jpg\n")
    with caplog.at_level(logging.WARNING):
        fill(splits=("val",), delete=str(tmp_path / "gone.txt"))
    assert "1 of 3 images to delete are not there." in caplog.text
    left = {f"train-{i}.jpg" for i in range(24)} - {"train-0.jpg", "train-5.jpg"}
    left |= {f"val-{i}.jpg" for i in range(12)}
    assert rows(path).keys() == left
    (tmp_path / "albums.jsonl").write_text('{"id": "val-3.jpg", "album": "new"}\n')
    fill(splits=("val",), metadata=str(tmp_path / "albums.jsonl"))  # replaces them
    found = rows(path, "album")
    assert found.keys() == left
    assert [name for name, row in found.items() if row.get("album") == "new"] == ["val-3.jpg"]
    fill(data=None, delete=str(tmp_path / "gone.txt"))
    assert rows(path).keys() == left


def test_a_part_that_is_done_is_not_done_again(fill, tmp_path, monkeypatch):
    """What was deleted before a job stopped is not deleted again when it goes on."""
    (tmp_path / "gone.txt").write_text("train-0.jpg\n")
    options = {"delete": str(tmp_path / "gone.txt"), "splits": ("train",)}
    done, original = [], MilvusStore.upsert

    def upsert(store, images):
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append([image.id for image in images])
        original(store, images)

    monkeypatch.setattr(MilvusStore, "upsert", upsert)
    with pytest.raises(BaseException, match=""):
        fill(**options)
    monkeypatch.setattr(MilvusStore, "upsert", lambda *a: (done.append(a[1]), original(*a)))
    path = fill(**options)
    assert len(rows(path)) == 24
    assert [len(batch) for batch in done] == [12, 12]


def test_a_killed_job_is_finished_by_the_same_command(fill, model, tmp_path, caplog):
    data = tiny.write(str(tmp_path / "data"), (("train", 240),), shards=80)
    path, log = tmp_path / "photos.db", "collections/mrnn_index_facts/wal"
    killed = programs.start(
        tmp_path, "export.index", "--store=milvus", "--model", model, "--data", data, "--uri", path
    )
    deadline = time.monotonic() + 200

    def noted() -> int:
        return sum(each.stat().st_size for each in (path / log).glob("*data*"))

    while noted() < 10_000 and killed.process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.001)
    killed.process.kill()
    killed.wait()
    assert 0 < len(rows(str(path))) < 240
    with caplog.at_level(logging.INFO, "absl"):
        fill(data=data)
    assert "Finishing what" in caplog.text
    found = rows(str(path), "projection")
    assert len(found) == 240
    every = fill(data=data, uri=str(tmp_path / "whole.db"))
    for name, row in rows(every, "projection").items():
        assert found[name]["projection"] == row["projection"]


def test_counts_are_those_of_the_dataset(fill, tmp_path):
    data = tiny.write(str(tmp_path / "data"))
    marker = tmp_path / "data" / "dataset.json"
    tiny.edit(marker, lambda facts: facts["splits"]["val"].update(captions=37))
    with pytest.raises(UserError, match=r"'val' hold 12 images and 36 captions, but dataset.json"):
        fill(data=data)


def test_an_image_whose_features_are_not_finite_is_refused_by_name(fill, tmp_path):
    import tensorflow as tf

    data = tiny.write(str(tmp_path / "data"), (("val", 4),), shards=1)
    [path] = records.DatasetInfo.load(data).shards(data, "val")
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(records.serialize("bad.jpg", ["a dog"], np.full(12, np.nan)))
    records.DatasetInfo.load(data).save(data)
    with pytest.raises(UserError, match=r"holds NaN or infinity in the features of bad\.jpg"):
        fill(data=data)


BAD = {
    "uri": ({"uri": None}, "`uri` is required: where `store` is"),
    "address": ({"uri": "photos"}, "photos is no address of Milvus"),
    "down": ({"uri": "http://127.0.0.1:1"}, "No Milvus answers at http://127.0.0.1:1"),
    "no database": ({"uri": "TEXT.db"}, "text.db is not a database of Milvus Lite"),
    "output": ({"output": "index"}, "`output` is for an index that is served"),
    "sentences": ({"sentences": "TEXT"}, "`sentences` is for an index that is served"),
    "data": ({"data": None}, "`data` is required"),
    "splits": ({"data": None, "delete": "TEXT", "splits": ("val",)}, "`splits` goes with `data`"),
    "no data": ({"data": "nowhere"}, "nowhere holds no dataset.json"),
    "metadata": ({"metadata": "TEXT"}, "`metadata` .*text:1: the line is not JSON"),
    "no metadata": ({"metadata": "nowhere"}, "nowhere"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(fill, tmp_path, case):
    options, sentence = BAD[case]
    for name in ("text", "text.db"):
        (tmp_path / name).write_text("what is this\n")
    places = {"TEXT": str(tmp_path / "text"), "TEXT.db": str(tmp_path / "text.db")}
    options = {k: places.get(v, v) if isinstance(v, str) else v for k, v in options.items()}
    with pytest.raises((UserError, OSError, tf_not_found()), match=sentence):
        fill(**options)
    assert not (tmp_path / "photos.db").exists()


def tf_not_found() -> type:
    import tensorflow as tf

    return tf.errors.NotFoundError

"""A collection of images in Milvus Lite: what is written is found, by whoever opens it."""

import contextlib
import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pytest

from mrnn_tf.errors import UserError
from mrnn_tf.retrieval.milvus import Address, MilvusStore, StoredImage, is_address

M = 16
FACTS = {"model": "m" * 64, "vocabulary": "v" * 64, "encoder": "features:tiny:12", "size": str(M)}


def projection(number: int, version: int = 0) -> np.ndarray:
    return np.random.default_rng([number, version]).normal(size=M).astype(np.float32)


def images(numbers, version: int = 0) -> list[StoredImage]:
    return [
        StoredImage(
            f"{number}.jpg",
            projection(number, version),
            [f"image {number}"],
            {"album": str(2020 + number % 5), "number": number, "tags": ["a", "b"][: number % 3]},
        )
        for number in numbers
    ]


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("milvus") / "photos.db")
    with MilvusStore.create(path, FACTS) as store:
        store.upsert(images(range(1200)))
        yield store


def test_addresses():
    assert Address.parse("milvus:photos.db") == ("photos.db", "mrnn_index")
    assert Address.parse("http://host:19530#dogs") == ("http://host:19530", "dogs")
    assert str(Address.parse("photos.db#dogs")) == "photos.db#dogs"
    assert all(map(is_address, ["a.db", "milvus:a.db", "https://host", "tcp://h:1#a", "a.db#b"]))
    assert not any(map(is_address, ["models/mrnn_index", "models/mrnn_index/1", "gs://b/index"]))
    with pytest.raises(UserError, match="photos is no address of Milvus: name a local file"):
        Address.parse("milvus:photos")
    with pytest.raises(UserError, match="must name a collection of letters, digits"):
        Address.parse("photos.db#my dogs")


def test_the_nearest_are_those_of_all_inner_products(filled):
    vectors = np.random.default_rng(1).normal(size=(7, M)).astype(np.float32)
    every = np.stack([projection(number) for number in range(1200)])
    assert filled.count() == 1200
    for vector, (ids, projections) in zip(vectors, filled.nearest(vectors, 50), strict=True):
        rows = np.argsort(-every @ vector)[:50]
        assert ids == [f"{row}.jpg" for row in rows]
        np.testing.assert_array_equal(projections, every[rows])


def test_filters_go_through(filled):
    vectors = projection(3)[np.newaxis]
    [(ids, _)] = filled.nearest(vectors, 1200, 'album == "2024" and number < 100')
    assert sorted(ids) == sorted(f"{number}.jpg" for number in range(4, 100, 5))
    [(ids, _)] = filled.nearest(vectors, 3, 'array_contains(tags, "b")')
    assert all(int(name.split(".")[0]) % 3 == 2 for name in ids) and len(ids) == 3
    [(ids, projections)] = filled.nearest(vectors, 3, 'camera == "none has one"')
    assert ids == [] and projections.shape == (0, M)


def test_a_filter_that_cannot_be_read_is_refused(filled, capfd):
    with pytest.raises(UserError, match=r"photos.db refused the filter 'album = \"2024': unexp"):
        filled.nearest(projection(3)[np.newaxis], 3, 'album = "2024')
    assert capfd.readouterr().err == ""


def test_images_are_replaced_and_deleted_by_their_ids(tmp_path):
    path = str(tmp_path / "photos.db")
    with MilvusStore.create(path, FACTS) as store:
        store.upsert(images(range(600)))
        store.upsert(images(range(500, 700), version=1))
        store.delete([f"{number}.jpg" for number in range(550)] + ["never.jpg"])
        assert store.known(["1.jpg", "600.jpg", "never.jpg"]) == {"600.jpg"}
    with MilvusStore.open(path) as store:
        assert store.count() == 150
        [(ids, projections)] = store.nearest(projection(0)[np.newaxis], 1000)
    assert sorted(ids) == sorted(f"{number}.jpg" for number in range(550, 700))
    for name, found in zip(ids, projections, strict=True):
        np.testing.assert_array_equal(found, projection(int(name.split(".")[0]), version=1))


def test_collections_do_not_meet(tmp_path):
    path = str(tmp_path / "photos.db")
    with MilvusStore.create(f"{path}#dogs", FACTS) as store:
        store.upsert(images(range(3)))
    other = FACTS | {"model": "n" * 64, "size": "4"}
    with MilvusStore.create(f"{path}#cats", other) as store:
        assert store.count() == 0 and store.facts == other
    with MilvusStore.open(f"{path}#dogs") as store:
        assert store.count() == 3 and store.facts == FACTS


def test_what_a_job_has_done_is_noted(tmp_path):
    path = str(tmp_path / "photos.db")
    with MilvusStore.create(path, FACTS) as store:
        store.finish("job", "a", {"images": 3})
        store.finish("other", "b", {})
    with MilvusStore.create(path, FACTS) as store:
        assert store.finished("job", ["a", "b"]) == {"a": {"images": 3}}
        store.forget("job", ["a", "b"])
        assert store.finished("job", ["a", "b"]) == {}
        assert store.finished("other", ["b"]) == {"b": {}}


def test_a_collection_of_another_model_is_refused(tmp_path):
    path = str(tmp_path / "photos.db")
    MilvusStore.create(path, FACTS).close()
    for key, value in (("model", "n" * 64), ("vocabulary", "w" * 64), ("encoder", "vgg16")):
        with pytest.raises(UserError, match=f"photos.db: The index was made with the {key} "):
            MilvusStore.create(path, FACTS | {key: value})
    with MilvusStore.open(path) as store:
        wrong = np.zeros((1, M + 1), np.float32)
        with pytest.raises(UserError, match="holds images of 16 values, but the model's have 17"):
            store.nearest(wrong, 3)
        with pytest.raises(UserError, match="holds images of 16 values, but the model's have 17"):
            store.upsert([StoredImage("a", wrong[0])])


def test_what_is_no_store_is_named(tmp_path, capfd):
    (tmp_path / "text.db").write_text("no database")
    (tmp_path / "folder.db").mkdir()
    (tmp_path / "folder.db" / "notes.txt").write_text("mine")
    cases = {
        str(tmp_path / "none.db"): "There is no file .*none.db: make it with",
        str(tmp_path / "text.db"): "text.db is not a database of Milvus Lite",
        str(tmp_path / "folder.db"): "folder.db is not a database of Milvus Lite",
        "http://127.0.0.1:1": r"No Milvus answers at http://127.0.0.1:1: Fail connecting",
    }
    for address, sentence in cases.items():
        with pytest.raises(UserError, match=sentence):
            MilvusStore.open(address, timeout=2)
    assert not (tmp_path / "none.db").exists()
    assert os.listdir(tmp_path / "folder.db") == ["notes.txt"]
    path = str(tmp_path / "photos.db")
    MilvusStore.create(path, FACTS).close()
    with pytest.raises(UserError, match=r"holds no collection dogs that `python -m export.index`"):
        MilvusStore.open(f"{path}#dogs")
    schema = tmp_path / "photos.db" / "collections" / "mrnn_index" / "schema.json"
    schema.write_text(schema.read_text()[:50])
    with pytest.raises(UserError, match=r"photos.db (cannot be opened|failed)"):
        MilvusStore.open(path)
    assert capfd.readouterr().err == ""


def _hold(path: str, opened, ended) -> None:
    with MilvusStore.open(path):
        opened.set()
        ended.wait(60)


def test_a_file_that_another_process_has_open_is_refused(tmp_path, capfd):
    path = str(tmp_path / "photos.db")
    MilvusStore.create(path, FACTS).close()
    context = multiprocessing.get_context("spawn")
    opened, ended = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(path, opened, ended))
    holder.start()
    try:
        assert opened.wait(60)
        with pytest.raises(UserError, match=r"photos.db cannot be opened: another process has it"):
            MilvusStore.open(path)
    finally:
        ended.set()
        holder.join(60)
    MilvusStore.open(path).close()
    assert capfd.readouterr().err == ""


def _write(path: str, begin: int) -> None:
    with MilvusStore.create(path, FACTS) as store:
        _write_into(store, begin)


def _write_into(store: MilvusStore, begin: int) -> None:
    """Upserts 10,000 images and deletes every tenth, a hundred at a time."""
    for first in range(begin, 10_000, 100):
        store.upsert(images(range(first, first + 100)))
        store.delete([f"{number}.jpg" for number in range(first, first + 100, 10)])
        store.finish("job", "done", {"before": first + 100})


@contextlib.contextmanager
def _searching(store: MilvusStore):
    """Searches all the while; every result must be an image as it was written."""
    stop, counts = threading.Event(), []

    def search() -> None:
        vectors = np.random.default_rng(2).normal(size=(2, M)).astype(np.float32)
        while not stop.is_set():
            for ids, found in store.nearest(vectors, 20):
                assert len(set(ids)) == len(ids)
                for name, row in zip(ids, found, strict=True):
                    np.testing.assert_array_equal(row, projection(int(name.split(".")[0])))
            counts.append(store.count())

    thread = threading.Thread(target=search)
    thread.start()
    try:
        yield counts
    finally:
        stop.set()
        thread.join()


@pytest.mark.slow
def test_a_killed_writer_loses_and_doubles_nothing(tmp_path):
    path = str(tmp_path / "photos.db")
    context, before, kills = multiprocessing.get_context("spawn"), 0, 0
    while before < 5_000:
        writer = context.Process(target=_write, args=(path, before))
        writer.start()
        time.sleep(4 + kills)
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        kills += 1
        with contextlib.suppress(UserError), MilvusStore.open(path) as store:
            report = store.finished("job", ["done"])
            before = report["done"]["before"] if report else 0
            # What was acknowledged is there, and of the rest at most one batch.
            assert before - before // 10 <= store.count() <= before - before // 10 + 100
    with MilvusStore.create(path, FACTS) as store, _searching(store) as counts:
        _write_into(store, before)
    assert kills > 0 and len(counts) > 3
    with MilvusStore.open(path) as store:
        assert store.count() == 9_000
        names = [f"{number}.jpg" for number in range(10_000)]
        assert store.known(names) == {name for row, name in enumerate(names) if row % 10}

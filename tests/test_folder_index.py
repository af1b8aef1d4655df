"""The index of a folder: what it notices, what survives a stop, and what it finds."""

import contextlib
import io
import os
import shutil
import sqlite3
import threading

import numpy as np
import PIL.Image
import pytest
import tiny

import mrnn_tf
from mrnn_tf.captioner import Captioner
from mrnn_tf.errors import UserError
from mrnn_tf.photo_index import PhotoIndex, indexing
from mrnn_tf.photo_index.catalogue import DATABASE_FILE, Catalogue
from mrnn_tf.photo_index.indexing import Changes

SIZE = 6


def picture(number: int, orientation: int = 1) -> bytes:
    """A JPEG of its own for every number."""
    image = PIL.Image.new("RGB", (16, 12), (number % 256, number // 256, 77))
    exif, content = PIL.Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    image.save(content, "JPEG", exif=exif)
    return content.getvalue()


class Encoder:
    """Features by content, and a count of what was encoded; stops where it is told to."""

    def __init__(self, most: int | None = None):
        self.encoded, self._most, self._lock = 0, most, threading.Lock()

    def __call__(self, contents):
        with self._lock:
            if self._most is not None and self.encoded + len(contents) > self._most:
                raise KeyboardInterrupt
            self.encoded += len(contents)
        features = [np.frombuffer(indexing.digest(each)[:SIZE], np.uint8) for each in contents]
        return np.array(features, np.float32).reshape(-1, SIZE)


@pytest.fixture
def folder(tmp_path):
    for number in range(300):
        path = tmp_path / "photos" / f"album {number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))
    return tmp_path / "photos"


@pytest.fixture
def index(tmp_path):
    Catalogue.create(str(tmp_path / "index"), {}, SIZE)
    return tmp_path / "index"


def update(index, folder, encode=None) -> Changes:
    with Catalogue(str(index), is_writing=True) as catalogue:
        return indexing.update(catalogue, str(folder), encode or Encoder(), lambda f: 2 * f)


def contents(index) -> tuple[list, bytes]:
    """All that the database says, and the bytes of the vectors."""
    with contextlib.closing(sqlite3.connect(index / DATABASE_FILE)) as database:
        tables = [
            list(database.execute(f"SELECT * FROM {t} ORDER BY 1")) for t in ("about", "photos")
        ]
    [vectors] = index.glob("vectors-*.f32")
    return tables, vectors.read_bytes()


def vector(index, name: str) -> np.ndarray:
    with Catalogue(str(index)) as catalogue:
        photos, vectors = catalogue.read()
    [row] = [i for i, photo in enumerate(photos) if os.fsdecode(photo.path).endswith(name)]
    return vectors[row]


def test_every_photograph_has_its_own_vector(index, folder):
    assert update(index, folder) == Changes(added=300)
    for number in (0, 31, 32, 299):
        expected = 2.0 * Encoder()([picture(number)])[0]
        np.testing.assert_array_equal(vector(index, f"/{number}.jpg"), expected)


def test_an_unchanged_folder_is_not_opened(index, folder, monkeypatch):
    update(index, folder)
    before = contents(index)
    monkeypatch.setattr(indexing.photos, "read", lambda path: pytest.fail(f"{path} was opened"))
    assert update(index, folder) == Changes()
    assert contents(index) == before


def test_new_changed_moved_touched_and_removed_files_are_noticed(index, folder):
    update(index, folder)
    (folder / "album 1" / "new.jpg").write_bytes(picture(1000))
    (folder / "album 0" / "0.jpg").write_bytes(picture(2000))
    os.utime(folder / "album 0" / "0.jpg", ns=(1, 1))
    (folder / "album 1" / "1.jpg").rename(folder / "moved.jpg")
    os.utime(folder / "album 2" / "2.jpg", ns=(5, 5))
    (folder / "album 0" / "3.jpg").unlink()
    encode = Encoder()
    assert update(index, folder, encode) == Changes(added=1, changed=1, moved=1, removed=1)
    assert encode.encoded == 2
    for name, number in (("moved.jpg", 1), ("/0.jpg", 2000), ("new.jpg", 1000), ("/2.jpg", 2)):
        np.testing.assert_array_equal(vector(index, name), 2 * Encoder()([picture(number)])[0])
    assert update(index, folder) == Changes()


def test_an_unreadable_file_is_remembered_and_retried_when_it_changes(index, folder):
    broken = folder / "album 0" / "0.jpg"
    broken.write_text("no picture")
    assert update(index, folder) == Changes(added=300, unreadable=1)
    assert update(index, folder, encode := Encoder()) == Changes(unreadable=1)
    assert encode.encoded == 0
    with Catalogue(str(index)) as catalogue:
        [photo] = [photo for photo in catalogue.photos() if photo.row is None]
    assert photo.reason.startswith(f"{broken}: no image; JPEG")
    broken.write_bytes(picture(0, orientation=6))
    assert update(index, folder) == Changes(changed=1)
    with Catalogue(str(index)) as catalogue:
        [photo] = [photo for photo in catalogue.photos() if photo.path.endswith(b"/0.jpg")]
    assert (photo.orientation, photo.reason) == (6, None)


def test_names_of_any_bytes_are_kept(index, folder):
    name = b"caf\xe9 #?%.jpg"
    with open(os.path.join(os.fsencode(folder), name), "wb") as file:
        file.write(picture(7000))
    assert update(index, folder).added == 301
    with Catalogue(str(index)) as catalogue:
        assert name in [photo.path for photo in catalogue.photos()]


@pytest.mark.parametrize("most", [0, 1, 100, 128, 200, 256, 290])
def test_a_stopped_update_goes_on_to_the_same_bytes(most, index, folder, tmp_path):
    Catalogue.create(str(tmp_path / "undisturbed"), {}, SIZE)
    update(tmp_path / "undisturbed", folder)
    with pytest.raises(KeyboardInterrupt):
        update(index, folder, Encoder(most))
    encode = Encoder()
    update(index, folder, encode)
    assert contents(index) == contents(tmp_path / "undisturbed")
    # Blocks of 128 that were committed stay; two batches of 32 may have been under way.
    assert encode.encoded <= 300 - max(0, most - 64) // 128 * 128


@pytest.mark.parametrize("most", [0, 32, 160])
def test_a_watch_sees_the_progress_and_stops_an_update(most, index, folder, tmp_path):
    Catalogue.create(str(tmp_path / "undisturbed"), {}, SIZE)
    update(tmp_path / "undisturbed", folder)
    seen = []

    def watch(done, total):
        seen.append((done, total))
        return done < most

    with Catalogue(str(index), is_writing=True) as catalogue:
        arguments = (catalogue, str(folder), Encoder(), lambda f: 2 * f)
        assert indexing.update(*arguments, watch) == Changes(added=most)
        assert seen == [(done, 300) for done in range(0, most + 1, 32)]
        assert indexing.update(*arguments) == Changes(added=300 - most)
    assert contents(index) == contents(tmp_path / "undisturbed")


def test_vectors_that_were_not_committed_are_cut_off(index, folder):
    update(index, folder)
    before = contents(index)
    with open(index / "vectors-0.f32", "ab") as file:
        file.write(b"half of a block")
    (index / "vectors-1.f32").write_bytes(b"a file that no transaction names")
    assert update(index, folder) == Changes()
    assert contents(index) == before


def test_rows_of_removed_photographs_do_not_stay_for_ever(index, folder):
    update(index, folder)
    kept = vector(index, "/299.jpg")
    for number in range(200):
        (folder / f"album {number % 3}" / f"{number}.jpg").unlink()
    assert update(index, folder) == Changes(removed=200)
    assert [path.name for path in index.glob("vectors-*")] == ["vectors-1.f32"]
    assert (index / "vectors-1.f32").stat().st_size == 100 * SIZE * 4
    np.testing.assert_array_equal(vector(index, "/299.jpg"), kept)
    (folder / "more.jpg").write_bytes(picture(9000))
    assert update(index, folder) == Changes(added=1)
    np.testing.assert_array_equal(vector(index, "more.jpg"), 2 * Encoder()([picture(9000)])[0])


def test_an_empty_folder_does_not_empty_the_index(index, folder):
    update(index, folder)
    before = contents(index)
    folder.rename(folder.parent / "unmounted")
    folder.mkdir()
    with pytest.raises(UserError, match="is empty now: the index stays as it was"):
        update(index, folder)
    assert contents(index) == before


def test_photographs_below_a_folder_that_cannot_be_listed_stay(index, folder, monkeypatch):
    update(index, folder)
    (folder / "album 0" / "0.jpg").unlink()
    scandir, closed = os.scandir, os.fsencode(folder / "album 1")

    def refuse(path):
        if path == closed:
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert update(index, folder) == Changes(removed=1)
    monkeypatch.undo()
    assert update(index, folder) == Changes()


def test_where_nothing_has_changed_nothing_is_written(index, folder, monkeypatch):
    update(index, folder)
    for method in ("change", "compact"):
        monkeypatch.setattr(Catalogue, method, lambda *_: pytest.fail("it was written"))
    assert update(index, folder) == Changes()


def test_a_full_disk_and_a_locked_database_are_named(index, folder):
    with Catalogue(str(index), is_writing=True) as catalogue:
        catalogue._database.execute("PRAGMA max_page_count = 1")
        with pytest.raises(UserError, match=r"cannot be used now: database or disk is full"):
            indexing.update(catalogue, str(folder), Encoder(), lambda f: 2 * f)
    with (
        Catalogue(str(index), is_writing=True) as catalogue,
        contextlib.closing(sqlite3.connect(index / DATABASE_FILE)) as other,
    ):
        catalogue._database.execute("PRAGMA busy_timeout = 0")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UserError, match=r"cannot be used now: database is locked"):
            indexing.update(catalogue, str(folder), Encoder(), lambda f: 2 * f)
    assert update(index, folder) == Changes(added=300)


def test_a_damaged_index_is_named(index, folder):
    update(index, folder)
    with open(index / "vectors-0.f32", "r+b") as file:
        file.truncate(100)
    with Catalogue(str(index)) as catalogue, pytest.raises(UserError, match="it is too short"):
        catalogue.read()
    with pytest.raises(UserError, match="it is too short"):
        update(index, folder)
    (index / DATABASE_FILE).write_bytes(b"no database, but long enough to be looked at" * 9)
    with pytest.raises(UserError, match=r"photos\.sqlite cannot be read"):
        update(index, folder)


# With a model


@pytest.fixture(scope="module")
def captioner(photo_job):
    return Captioner.load(photo_job)


@pytest.fixture(scope="module")
def photos(captioner, tmp_path_factory):
    """An index of nine pictures and a broken one."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(9):
        (folder / f"{tiny.COLOURS[number % 3]} {number}.png").write_bytes(tiny.picture(number % 3))
    (folder / "broken.png").write_bytes(tiny.picture(0)[:40])
    path = tmp_path_factory.mktemp("index") / "index"
    return PhotoIndex.build(path, folder, captioner)


def test_photographs_are_found_by_sentences(photos):
    assert photos.changes == Changes(added=10, unreadable=1) and len(photos) == 9
    for colour in tiny.COLOURS:
        matches = photos.search(f"Everything is {colour} here", k=3)
        assert all(f"{colour} " in os.path.basename(match.path) for match in matches)
        assert [match.score for match in matches] == sorted(
            (match.score for match in matches), reverse=True
        )
    [reason] = photos.unreadable().values()
    assert "broken.png: " in reason


def test_a_score_is_that_of_the_captioner(photos, captioner):
    [match] = photos.search("Everything is red here", k=1)
    score = captioner.score(match.path, "Everything is red here")
    assert match.score == pytest.approx(score.log_prob, abs=1e-3)
    [exact] = photos.search("Everything is red here", k=1, exact=True)
    assert exact.score == pytest.approx(match.score, abs=1e-3)


def test_queries_that_find_nothing(photos):
    long = "red " * 300
    assert photos.search(["zyx", long, "red"], k=1)[:2] == [[], []]
    assert photos.search_prefix("zyx") == photos.search_prefix("") == []
    assert photos.search([]) == []
    with pytest.raises(UserError, match="`k` must be 1 at least; got 0"):
        photos.search("red", k=0)


def test_a_prefix_and_similar_photographs(photos):
    typed = photos.search_prefix("everything is green", k=3)
    assert all("green " in match.path and len(match.words) == 3 for match in typed)
    assert sum(typed[0].words) == pytest.approx(typed[0].score, rel=1e-4)
    similar = photos.similar(tiny.picture(2), k=3)
    assert all("blue " in match.path for match in similar)
    assert similar[0].score == pytest.approx(0.0, abs=1e-2)


@pytest.mark.parametrize("method", ["sentences", "rerank"])
def test_a_folder_has_no_captions(photos, method):
    with pytest.raises(UserError, match="have no captions to find"):
        getattr(photos, method)(tiny.picture(0))


def test_an_index_is_loaded_and_updated(photos, captioner):
    loaded = PhotoIndex.load(photos.path)
    assert loaded.search("red", k=2) == photos.search("red", k=2)
    added = os.path.join(photos.folder, "added.png")
    shutil.copy(os.path.join(photos.folder, "red 0.png"), added)
    try:
        assert loaded.update() == Changes(added=1, unreadable=1) and len(loaded) == 10
    finally:
        os.remove(added)
    assert loaded.update().removed == 1 and len(loaded) == 9


def test_what_does_not_fit_is_told(photos, captioner, models, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty holds no photographs"):
        PhotoIndex.build(tmp_path / "index", tmp_path / "empty", captioner)
    with pytest.raises(UserError, match="missing is no folder"):
        PhotoIndex.build(tmp_path / "index", tmp_path / "missing", captioner)
    with pytest.raises(UserError, match=r"is the index of .*, not of "):
        PhotoIndex.build(photos.path, tmp_path / "empty", captioner)
    with pytest.raises(UserError, match="was made with another model"):
        PhotoIndex.load(photos.path, Captioner.load(models / "plain" / "1"))


def test_an_export_makes_the_index_of_its_run(photos, models, tmp_path):
    index = PhotoIndex.build(tmp_path / "index", photos.folder, Captioner.load(models / "mrnn"))
    expected = photos.search("Everything is red here", k=3)
    for mine, theirs in zip(index.search("Everything is red here", k=3), expected, strict=True):
        assert mine.score == pytest.approx(theirs.score, abs=1e-3)
    assert isinstance(mrnn_tf.PhotoIndex.load(tmp_path / "index"), type(photos))

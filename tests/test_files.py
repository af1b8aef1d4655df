import multiprocessing
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from mrnn_tf import files


@pytest.fixture
def built(tmp_path):
    (tmp_path / "built" / "parts").mkdir(parents=True)
    (tmp_path / "built" / "a.marker").write_text("whole")
    (tmp_path / "built" / "parts" / "z").write_bytes(b"\x00\xff")
    return str(tmp_path / "built")


def test_a_directory_appears_whole_and_leftovers_go(built, tmp_path):
    (tmp_path / "there" / "1.partial").mkdir(parents=True)
    (tmp_path / "there" / "1.partial" / "of a killed run").touch()
    os.utime(tmp_path / "there" / "1.partial", (0, 0))
    files.publish(built, str(tmp_path / "there" / "1"), last="a.marker")
    assert {str(p.relative_to(tmp_path / "there")) for p in (tmp_path / "there").rglob("*")} == {
        "1", "1/a.marker", "1/parts", "1/parts/z",
    }  # fmt: skip
    assert (tmp_path / "there" / "1" / "parts" / "z").read_bytes() == b"\x00\xff"


def publish(built, target, gate, results):
    gate.wait()
    try:
        files.publish(built, target, last="a.marker")
        results.put(built)
    except files.UserError as error:
        results.put(str(error))


def test_of_several_publishers_one_wins(built, tmp_path):
    """With one name for what is being copied, they overwrote and removed each other's files."""
    target, context = tmp_path / "there" / "1", multiprocessing.get_context("fork")
    sources = [shutil.copytree(built, f"{built}-{number}") for number in range(6)]
    for number, source in enumerate(sources):
        with open(os.path.join(source, "a.marker"), "w") as file:
            file.write(str(number))
        for part in range(40):
            with open(os.path.join(source, "parts", str(part)), "w") as file:
                file.write(str(number))
    for _ in range(5):
        gate, results = context.Barrier(len(sources)), context.Queue()
        arguments = [(source, str(target), gate, results) for source in sources]
        processes = [context.Process(target=publish, args=each) for each in arguments]
        for process in processes:
            process.start()
        answers = [results.get(timeout=60) for _ in processes]
        for process in processes:
            process.join()
        [winner] = [answer for answer in answers if answer in sources]
        others = [answer for answer in answers if answer != winner]
        assert all("published by another process meanwhile" in answer for answer in others)
        written = {path.read_bytes() for path in target.rglob("*") if path.is_file()}
        assert written == {winner.rpartition("-")[2].encode(), b"\x00\xff"}
        assert len(list(target.rglob("*"))) == 43
        assert [path.name for path in target.parent.iterdir()] == ["1"]
        shutil.rmtree(target)


def test_what_another_process_is_copying_is_left_alone(built, tmp_path):
    partial = tmp_path / "there" / "1.other.partial"
    partial.mkdir(parents=True)
    os.utime(partial, (0, 0))
    with files.locked(str(partial)):
        files.publish(built, str(tmp_path / "there" / "1"), last="a.marker")
    assert partial.exists()
    files.publish(built, str(tmp_path / "there" / "2"), last="a.marker")
    assert partial.exists()  # of another version


def test_on_a_store_without_renames_the_marker_comes_last(built, monkeypatch):
    copied, copy = [], tf.io.gfile.copy

    def note(source, target, overwrite):
        copied.append(target)
        copy(source, target, overwrite)

    monkeypatch.setattr(tf.io.gfile, "copy", note)
    files.publish(built, "ram://published/1", last="a.marker")
    assert copied == ["ram://published/1/parts/z", "ram://published/1/a.marker"]
    assert tf.io.gfile.exists("ram://published/1/a.marker")


def test_a_file_is_written_beside_and_renamed(tmp_path):
    path = tmp_path / "f.json"
    files.write_json(str(path), {"a": [1.5]})
    assert path.read_text() == '{\n "a": [\n  1.5\n ]\n}\n'
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(str(path), float("nan"))
    assert [p.name for p in tmp_path.iterdir()] == ["f.json"]


def test_json_is_read_or_refused_with_what_is_wanted(tmp_path):
    path = tmp_path / "f.json"
    with pytest.raises(FileNotFoundError, match=r"no file .*f\.json: a list is wanted"):
        files.read_json(str(path), "a list is wanted")
    path.write_text(" \n")
    with pytest.raises(ValueError, match=r"f\.json is empty: a list is wanted"):
        files.read_json(str(path), "a list is wanted")
    path.write_text("[1")
    with pytest.raises(ValueError, match=r"f\.json is not whole JSON .*: a list is wanted"):
        files.read_json(str(path), "a list is wanted")
    path.write_text('["\u00e9"]')
    assert files.read_json(str(path), "a list is wanted") == ["\u00e9"]


def test_a_directory_is_for_one_process_at_a_time(tmp_path):
    busy = rf"Another process is writing to {tmp_path}/out: wait for its end"
    for _ in range(2):
        with files.alone_in(str(tmp_path / "out")):
            with pytest.raises(ValueError, match=busy), files.alone_in(str(tmp_path / "out")):
                pass
            with files.alone_in(str(tmp_path / "other")):
                pass
    with files.alone_in("ram://alone"), files.alone_in("ram://alone"):
        pass  # a store has no locks


def test_arrays_are_read_or_refused_by_name(tmp_path):
    path = str(tmp_path / "a.npz")
    files.write_arrays(path, some=np.arange(3))
    assert files.read_arrays(path)["some"].tolist() == [0, 1, 2]
    for content in (b"", b"PK", (tmp_path / "a.npz").read_bytes()[:-30]):
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.npz is damaged .*: delete it and run the same"):
            files.read_arrays(path)


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, rb'["half an emoji \ud83d"]', b'["\xed\xa0\x80"]', b"9" * 5000]
)
def test_json_that_no_value_can_be_made_of_is_refused(tmp_path, content):
    (tmp_path / "f.json").write_bytes(content)
    with pytest.raises(files.UserError, match=r"f\.json is not whole JSON .*: a list is wanted"):
        files.read_json(str(tmp_path / "f.json"), "a list is wanted")


def test_text_is_utf8_with_or_without_a_mark(tmp_path):
    (tmp_path / "f.txt").write_text("\ufeffcaf\u00e9\n")
    assert files.read_text(str(tmp_path / "f.txt")) == "caf\u00e9\n"
    (tmp_path / "f.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(files.UserError, match=r"f\.txt is not a text in UTF-8"):
        files.read_text(str(tmp_path / "f.txt"))

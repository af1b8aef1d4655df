import json

import pytest
import tensorflow as tf

from mrnn_tf import checksums, files
from mrnn_tf.errors import UserError


@pytest.fixture(params=["local", "remote"])
def folder(request, tmp_path):
    """A folder with two files and their marker."""
    folder = str(tmp_path) if request.param == "local" else f"ram://checksums/{tmp_path.name}"
    files.write_whole(f"{folder}/a.txt", "some words")
    files.write_whole(f"{folder}/below/b.bin", b"123456789")
    checksums.write(f"{folder}/marker.json", {"n": (1, 2.5)}, folder, ["a.txt", "below/b.bin"])
    return folder


def read(folder):
    return checksums.read(f"{folder}/marker.json", "a marker is wanted", folder, "make it again")


def test_what_was_written_is_whole(folder):
    content, sums = read(folder)
    assert content == {"n": [1, 2.5]}
    sums.check()
    assert sums.read("a.txt") == b"some words"
    assert sums.recorded["below/b.bin"] == "9 cbf43926"  # the check value of the algorithm


def test_a_damaged_file_is_named_with_what_to_do(folder):
    _, sums = read(folder)
    files.write_whole(f"{folder}/a.txt", "some wordz")
    sums.check_sizes()
    sums.check("below/b.bin")
    sentence = r"a\.txt is damaged: it is not what was written, by its checksum; make it again\."
    for look in (sums.check, lambda: sums.check("a.txt"), lambda: sums.read("a.txt")):
        with pytest.raises(ValueError, match=sentence):
            look()
    files.write_whole(f"{folder}/a.txt", "some")
    with pytest.raises(ValueError, match=r"a\.txt is damaged: it has 4 bytes and had 10 when"):
        sums.check_sizes()
    tf.io.gfile.remove(f"{folder}/a.txt")
    with pytest.raises(FileNotFoundError, match=r"a\.txt is missing: make it again\."):
        sums.check()


def test_an_edited_marker_is_refused(folder):
    content = files.read_json(f"{folder}/marker.json", "")
    for change in ({"n": [1, 2.6]}, {"checksums": {}}, {"checksum": None}, {"more": 1}):
        files.write_json(f"{folder}/marker.json", content | change)
        with pytest.raises(ValueError, match=r"marker\.json is damaged or was edited: .* again"):
            read(folder)
    del content["checksum"]
    files.write_json(f"{folder}/marker.json", content)
    with pytest.raises(ValueError, match=r"marker\.json is damaged or was edited"):
        read(folder)
    files.write_json(f"{folder}/marker.json", [1])
    with pytest.raises(ValueError, match=r"holds no JSON object: a marker is wanted; make it"):
        read(folder)


def test_a_marker_of_an_earlier_release_says_nothing(folder):
    files.write_json(f"{folder}/marker.json", {"n": [1]})
    content, sums = read(folder)
    assert content == {"n": [1]}
    files.write_whole(f"{folder}/a.txt", "other")
    sums.check()
    assert sums.read("a.txt") == b"other"


def test_a_file_is_checked_by_the_marker_beside_it(folder):
    checksums.check_beside(f"{folder}/a.txt", "none.json", "x")
    checksums.check_beside(f"{folder}/a.txt", "marker.json", "x")
    checksums.check_beside(f"{folder}/unlisted", "marker.json", "x")
    files.write_whole(f"{folder}/a.txt", "some wordz")
    with pytest.raises(ValueError, match=r"a\.txt is damaged: .*; do this\."):
        checksums.check_beside(f"{folder}/a.txt", "marker.json", "do this")


def test_the_same_content_has_the_same_marker(folder, tmp_path):
    other = str(tmp_path / "other.json")
    checksums.write(other, {"n": [1, 2.5]}, folder, ["below/b.bin", "a.txt"])
    assert files.read_json(other, "") == files.read_json(f"{folder}/marker.json", "")
    assert json.loads((tmp_path / "other.json").read_text())["checksum"]


@pytest.mark.parametrize(
    "recorded", [[], "x", {"a.npy": ["9", "00000000"]}, {"a.npy": "many 00000000"}, {"a": None}]
)
def test_a_marker_with_other_checksums_than_were_written_is_refused(tmp_path, recorded):
    path, content = str(tmp_path / "m.json"), {"size": 1, "checksums": recorded}
    files.write_json(path, {**content, "checksum": checksums._of_json(content)})
    with pytest.raises(UserError, match=r"m\.json has no `checksums` of files, .*; make it again"):
        checksums.read(path, "a marker is wanted", str(tmp_path), "make it again")


def test_a_marker_without_those_of_its_files_is_refused(tmp_path):
    path, content = str(tmp_path / "m.json"), {"size": 1}
    files.write_json(path, {**content, "checksum": checksums._of_json(content)})
    with pytest.raises(UserError, match=r"m\.json has no `checksums` of files"):
        checksums.read(path, "a marker is wanted", str(tmp_path), "make it again")

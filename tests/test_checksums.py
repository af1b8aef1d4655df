import pytest

from mrnn_tf import checksums, files
from mrnn_tf.errors import UserError


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

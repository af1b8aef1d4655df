import io
import zipfile

import numpy as np
import pytest

from mrnn_tf import arrays
from mrnn_tf.errors import UserError


def npy(array) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=True)
    return content.getvalue()


def npz(**members: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, member in members.items():
            archive.writestr(f"{name}.npy", member)
    return content.getvalue()


WHOLE = npy(np.arange(6.0).reshape(2, 3))
DAMAGED = {
    "empty": b"",
    "text": b"hello",
    "cut": WHOLE[:-1],
    "an open bracket": WHOLE.replace(b"'shape': (2, 3)", b"'shape': (2, 3 "),
    "a NUL": WHOLE.replace(b"(2, 3)", b"(2,\0 3)"),
    "more values than there are": WHOLE.replace(b"(2, 3), }", b"(2**9), }"),
    "more than there is memory": WHOLE.replace(b"(2, 3), }     ", b"(9999999999999,), }"),
    "objects": npy(np.array([{}], object)),
    "an archive": npz(a=WHOLE),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_arrays_are_refused(tmp_path, case):
    (tmp_path / "f.npy").write_bytes(DAMAGED[case])
    with pytest.raises(UserError, match=r"^f\.npy is no readable NumPy file without objects: "):
        arrays.read(str(tmp_path / "f.npy"), "f.npy")
    with pytest.raises(UserError, match=r"^it is no readable"):
        arrays.read(io.BytesIO(DAMAGED[case]), "it")
    with pytest.raises(UserError, match=r"^f\.npz is no readable"):  # NumPy gives raw bytes
        arrays.read_archive(io.BytesIO(npz(a=DAMAGED[case])), "f.npz")


def test_damaged_archives_are_refused():
    whole = npz(a=WHOLE)
    for start in range(0, len(whole), 7):
        content = bytearray(whole)
        content[start] ^= 0xFF
        try:
            read = arrays.read_archive(io.BytesIO(content), "f.npz")
        except UserError:
            continue
        assert all(isinstance(array, np.ndarray) for array in read.values())


def test_arrays_are_read(tmp_path):
    (tmp_path / "f.npy").write_bytes(WHOLE)
    mapped = arrays.read(str(tmp_path / "f.npy"), "f.npy")
    assert isinstance(mapped, np.memmap) and mapped.shape == (2, 3)
    archive = arrays.read_archive(io.BytesIO(npz(a=WHOLE, b=npy(np.array(["x"])))), "f.npz")
    np.testing.assert_array_equal(archive["a"], mapped)
    assert archive["b"].tolist() == ["x"]

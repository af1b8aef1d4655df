"""Arrays in NumPy's files, `.npy` and `.npz`, without objects: nothing is ever unpickled.

NumPy's own reader raises whatever its parts do on damaged files, and takes for bytes what is no
array. The module needs no TensorFlow, so that a client may use it.
"""

import contextlib
import lzma
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from mrnn_tf.errors import UserError

# What a damaged header, archive or stream raises; a lying shape asks for too much memory.
DAMAGED = (
    ArithmeticError, EOFError, LookupError, MemoryError, OSError, RuntimeError, SyntaxError,
    TypeError, ValueError, lzma.LZMAError, struct.error, tokenize.TokenError, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip


def read(source: str | BinaryIO, name: object) -> np.ndarray:
    """The array of an `.npy` file, called `name` in errors; a path is mapped into memory."""
    with refusing(name):
        if isinstance(source, str):
            return np.lib.format.open_memmap(source, mode="r")
        return np.lib.format.read_array(source, allow_pickle=False)


def read_archive(source: str | BinaryIO, name: object) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file by their names."""
    arrays = {}
    with refusing(name), zipfile.ZipFile(source) as archive:
        for member in archive.namelist():
            with archive.open(member) as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
                arrays[member.removesuffix(".npy")] = array
    return arrays


@contextlib.contextmanager
def refusing(name: object) -> Iterator[None]:
    """Turns what reading a damaged file of arrays raises into a `UserError`."""
    try:
        yield
    except DAMAGED as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(f"{name} is no readable NumPy file without objects: {reason}.") from error

"""Reads the tensors of a PyTorch file without running what its pickles may ask for.

A pickle can call any function it names. Here it may name those that rebuild tensors and no other.
"""

import collections
import io
import pickle

import numpy as np
import tensorflow as tf

from mrnn_tf.errors import UserError

_MAGIC = 0x1950A86A20F9469CFC6C
_STORAGES = {"FloatStorage": "<f4", "LongStorage": "<i8"}
_MALFORMED = (AttributeError, EOFError, LookupError, MemoryError, OverflowError, TypeError)
_MALFORMED += (ValueError, pickle.UnpicklingError)


def _view(storage: np.ndarray, offset: int, shape: tuple, strides: tuple, *_) -> np.ndarray:
    itemsize = storage.itemsize
    strides = tuple(stride * itemsize for stride in strides)
    # This constructor, unlike `as_strided`, refuses a view that leaves its buffer.
    return np.ndarray(shape, storage.dtype, storage, offset * itemsize, strides)


_ALLOWED = {f"torch.{name}": name for name in _STORAGES}
_ALLOWED["collections.OrderedDict"] = collections.OrderedDict
_ALLOWED["torch._utils._rebuild_tensor_v2"] = _view


class _Unpickler(pickle.Unpickler):
    """Rebuilds tensors as views of storages whose contents follow the pickle."""

    def __init__(self, file: io.BytesIO):
        super().__init__(file, encoding="latin1")
        self.storages = {}

    def find_class(self, module: str, name: str) -> object:
        if f"{module}.{name}" not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no tensor needs")
        return _ALLOWED[f"{module}.{name}"]

    def persistent_load(self, pid: tuple) -> np.ndarray:
        _, kind, key, _, count, _ = pid
        if key not in self.storages:
            self.storages[key] = np.zeros(count, _STORAGES[kind])
        return self.storages[key]


def read_torch(path: str) -> dict[str, np.ndarray]:
    """The tensors of a PyTorch state dictionary in the format before 1.6, by name."""
    if not tf.io.gfile.exists(path):
        raise FileNotFoundError(f"The weights file {path} does not exist.")
    with tf.io.gfile.GFile(path, "rb") as file:
        content = io.BytesIO(file.read())
    try:
        return _tensors(content)
    except _MALFORMED as error:
        wanted = "state dictionary of PyTorch's format before 1.6"
        raise UserError(f"{path} is no {wanted}: {error}.") from error


def _tensors(file: io.BytesIO) -> dict[str, np.ndarray]:
    """Five pickles, then the storages, each as its length and its values."""
    magic, _version, _machine = (_Unpickler(file).load() for _ in range(3))
    if magic != _MAGIC:
        raise UserError("its magic number is another")
    unpickler = _Unpickler(file)
    tensors = unpickler.load()
    for key in _Unpickler(file).load():
        storage = unpickler.storages[key]
        file.seek(8, io.SEEK_CUR)
        storage[:] = np.frombuffer(file.read(storage.nbytes), storage.dtype, storage.size)
    return dict(tensors)

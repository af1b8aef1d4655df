"""Reads arrays out of pickled weight files without running what a file may ask for.

A pickle can call any function it names. Here it may name those that rebuild arrays and no other.
"""

import collections
import io
import pickle
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from mrnn_tf.errors import UserError

_TORCH_MAGIC = 0x1950A86A20F9469CFC6C
_TORCH_STORAGES = {"FloatStorage": "<f4", "LongStorage": "<i8"}

_NUMPY_GLOBALS = {
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    "numpy.core.multiarray._reconstruct": np.ndarray(0).__reduce__()[0],
    "numpy._core.multiarray._reconstruct": np.ndarray(0).__reduce__()[0],
}

_MALFORMED = (AttributeError, EOFError, LookupError, MemoryError, OverflowError, TypeError)
_MALFORMED += (ValueError, pickle.UnpicklingError)


class _Unpickler(pickle.Unpickler):
    """Resolves only the globals it is given."""

    def __init__(self, file: io.BytesIO, allowed: Mapping[str, object]):
        super().__init__(file, encoding="latin1")
        self._allowed = allowed

    def find_class(self, module: str, name: str) -> object:
        if f"{module}.{name}" not in self._allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no array needs")
        return self._allowed[f"{module}.{name}"]


class _TorchUnpickler(_Unpickler):
    """Rebuilds tensors as views of storages whose contents follow the pickle."""

    def __init__(self, file: io.BytesIO):
        allowed = {f"torch.{name}": name for name in _TORCH_STORAGES}
        allowed["collections.OrderedDict"] = collections.OrderedDict
        allowed["torch._utils._rebuild_tensor_v2"] = _view
        super().__init__(file, allowed)
        self.storages = {}

    def persistent_load(self, pid: tuple) -> np.ndarray:
        _, kind, key, _, count, _ = pid
        if key not in self.storages:
            self.storages[key] = np.zeros(count, _TORCH_STORAGES[kind])
        return self.storages[key]


def _view(storage: np.ndarray, offset: int, shape: tuple, strides: tuple, *_) -> np.ndarray:
    itemsize = storage.itemsize
    strides = tuple(stride * itemsize for stride in strides)
    # This constructor, unlike `as_strided`, refuses a view that leaves its buffer.
    return np.ndarray(shape, storage.dtype, storage, offset * itemsize, strides)


def read_torch(path: str) -> dict[str, np.ndarray]:
    """The tensors of a PyTorch state dictionary in the format before 1.6, by name.

    The file is five pickles (magic number, version, machine, dictionary, storage keys) and then
    the storages, each as its length and its values.
    """
    return _read(path, "state dictionary of PyTorch's format before 1.6", _torch_arrays)


def read_npy(path: str) -> dict[str, list[np.ndarray]]:
    """The arrays of a `.npy` file that holds a pickled dictionary of layers, by name of layer."""
    return _read(path, "`.npy` dictionary of arrays", _npy_arrays)


def _read(path: str, wanted: str, parse: Callable[[io.BytesIO], dict]) -> dict:
    if not tf.io.gfile.exists(path):
        raise FileNotFoundError(f"The weights file {path} does not exist.")
    with tf.io.gfile.GFile(path, "rb") as file:
        content = io.BytesIO(file.read())
    try:
        return parse(content)
    except _MALFORMED as error:
        raise UserError(f"{path} is no {wanted}: {error}.") from error


def _torch_arrays(file: io.BytesIO) -> dict[str, np.ndarray]:
    if _Unpickler(file, {}).load() != _TORCH_MAGIC:
        raise UserError("its magic number is another")
    for _ in ("version", "machine"):
        _Unpickler(file, {}).load()
    unpickler = _TorchUnpickler(file)
    tensors = unpickler.load()
    for key in _Unpickler(file, {}).load():
        storage = unpickler.storages[key]
        file.seek(8, io.SEEK_CUR)
        storage[:] = np.frombuffer(file.read(storage.nbytes), storage.dtype, storage.size)
    return dict(tensors)


def _npy_arrays(file: io.BytesIO) -> dict[str, list[np.ndarray]]:
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise UserError(f"its format version is {version}, wanted (1, 0)")
    _, _, dtype = np.lib.format.read_array_header_1_0(file)
    if not dtype.hasobject:
        raise UserError(f"it holds one array of {dtype}")
    layers = _Unpickler(file, _NUMPY_GLOBALS).load().item()
    return {name: [np.asarray(array) for array in arrays] for name, arrays in layers.items()}

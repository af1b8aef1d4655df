"""Reads the tensors of a PyTorch file without unpickling it.

A pickle is a program that can call whatever it names. Here it is read as data: only the opcodes of
a state dictionary are understood, and what it would call is never looked up.
"""

import io
import pickletools
import warnings
from typing import Any

import numpy as np

from mrnn_tf import files
from mrnn_tf.errors import UserError

_MAGIC = 0x1950A86A20F9469CFC6C
_STORAGES = {"torch FloatStorage": "<f4", "torch LongStorage": "<i8"}
_DICT = "collections OrderedDict"
_NAMES = {*_STORAGES, _DICT, "torch._utils _rebuild_tensor_v2"}
_VALUES = ("BINUNICODE", "SHORT_BINSTRING", "BININT", "BININT1", "BININT2", "LONG1")
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "NONE": lambda: None}
_EMPTY |= {"NEWTRUE": lambda: True, "NEWFALSE": lambda: False}
_MALFORMED = (AttributeError, LookupError, OverflowError, TypeError, ValueError)


def read_torch(path: str) -> dict[str, np.ndarray]:
    """The tensors of a PyTorch state dictionary in the format before 1.6, by name."""
    content = files.read_weights(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of escapes in damaged texts
            return _tensors(content)
    except _MALFORMED as error:
        wanted = "state dictionary of PyTorch's format before 1.6"
        raise UserError(f"{path} is no {wanted}: {error}.") from error


def _tensors(content: bytes) -> dict[str, np.ndarray]:
    """Five pickles, then the storages, each as its length and its values."""
    file = io.BytesIO(content)
    magic, _version, _machine, state, keys = (_read_pickle(file) for _ in range(5))
    if magic != _MAGIC:
        raise UserError("its magic number is another")
    sizes = {key: (_STORAGES[kind], count) for (_, kind, key, _, count, _), *_ in state.values()}
    storages, begin = {}, file.tell()
    for key in keys:
        dtype, count = sizes[key]
        storages[key] = np.frombuffer(content, dtype, count, begin + 8)
        begin += 8 + storages[key].nbytes
    return {
        name: _view(storages[key], offset, shape, strides)
        for name, ((_, _, key, *_), offset, shape, strides, *_) in state.items()
    }


def _view(storage: np.ndarray, offset: int, shape: tuple, strides: tuple) -> np.ndarray:
    # This constructor, unlike `as_strided`, refuses a view that leaves its buffer.
    strides = tuple(stride * storage.itemsize for stride in strides)
    return np.ndarray(shape, storage.dtype, storage, offset * storage.itemsize, strides)


def _read_pickle(file: io.BytesIO) -> Any:
    """The value of one pickle; a call is the tuple of its arguments, an ordered dict a dict."""
    stack, marks, memo = [], [], {}

    def above_mark() -> list:
        begin = marks.pop()
        items = stack[begin:]
        del stack[begin:]
        return items

    for opcode, argument, _ in pickletools.genops(file):
        match opcode.name:
            case "GLOBAL" if argument not in _NAMES:
                raise ValueError(f"it asks for {argument}, which no tensor needs")
            case name if name == "GLOBAL" or name in _VALUES:
                stack.append(argument)
            case name if name in _EMPTY:
                stack.append(_EMPTY[name]())
            case "MARK":
                marks.append(len(stack))
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "TUPLE":
                stack.append(tuple(above_mark()))
            case "TUPLE1" | "TUPLE2":
                size = int(opcode.name[-1])
                stack[-size:] = [tuple(stack[-size:])]
            case "APPEND" | "APPENDS":
                items = above_mark() if opcode.name == "APPENDS" else [stack.pop()]
                stack[-1].extend(items)
            case "SETITEM" | "SETITEMS":
                items = above_mark() if opcode.name == "SETITEMS" else [stack.pop(-2), stack.pop()]
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "REDUCE":
                arguments, called = stack.pop(), stack.pop()
                stack.append({} if called == _DICT else arguments)
            case "BUILD":
                stack.pop()  # attributes, of which a state dictionary needs none
            case "PROTO" | "BINPERSID" | "STOP":
                pass
            case name:
                raise ValueError(f"it has the opcode {name}, which no tensor needs")
    return stack.pop()

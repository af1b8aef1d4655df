"""TensorProto to array and back: the one codec of client and server, without TensorFlow."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import Message

from mrnn_tf.errors import UserError
from serving.messages import DataType, TensorProto

ArrayOrStrings = np.ndarray | Sequence[str | bytes]
MAX_BYTES = 1 << 30  # of the array that a proto may ask for
MAX_RANK = 8
_TYPES = {  # of the array, and the field that holds the values
    DataType.DT_FLOAT: (np.dtype(np.float32), "float_val"),
    DataType.DT_DOUBLE: (np.dtype(np.float64), "double_val"),
    DataType.DT_HALF: (np.dtype(np.float16), "half_val"),
    DataType.DT_INT8: (np.dtype(np.int8), "int_val"),
    DataType.DT_INT16: (np.dtype(np.int16), "int_val"),
    DataType.DT_INT32: (np.dtype(np.int32), "int_val"),
    DataType.DT_INT64: (np.dtype(np.int64), "int64_val"),
    DataType.DT_UINT8: (np.dtype(np.uint8), "int_val"),
    DataType.DT_UINT16: (np.dtype(np.uint16), "int_val"),
    DataType.DT_UINT32: (np.dtype(np.uint32), "uint32_val"),
    DataType.DT_UINT64: (np.dtype(np.uint64), "uint64_val"),
    DataType.DT_BOOL: (np.dtype(np.bool_), "bool_val"),
    DataType.DT_STRING: (np.dtype(np.object_), "string_val"),
}
_DATA_TYPES = {dtype: data_type for data_type, (dtype, _) in _TYPES.items()}


def to_proto(array: ArrayOrStrings, message: type[Message] = TensorProto) -> Message:
    """The proto of an array, with its values in the field of their type, as TF Serving writes it.

    Strings are a list, or an object array of bytes. `message` is the class of the proto:
    TensorFlow's own where it goes into one of TensorFlow's messages.
    """
    if isinstance(array, Sequence):
        strings = [value.encode() if isinstance(value, str) else value for value in array]
        array = np.array(strings, np.object_)
    if array.dtype not in _DATA_TYPES:
        raise UserError(f"`array`: arrays of {array.dtype} cannot be sent.")
    data_type = _DATA_TYPES[array.dtype]
    shape = {"dim": [{"size": size} for size in array.shape]}
    values = array.ravel().view(_stored(array.dtype)).tolist()
    return message(dtype=data_type, tensor_shape=shape, **{_TYPES[data_type][1]: values})


def to_array(proto: Message, max_bytes: int = MAX_BYTES, must_hold_all: bool = False) -> np.ndarray:
    """The array of a proto, which is measured before anything is allocated for it.

    A proto may leave out equal values at its end; with `must_hold_all` it may not, and so no array
    is larger than what came.
    """
    if proto.dtype not in _TYPES:
        name = {kind: kind.name for kind in DataType}.get(proto.dtype, proto.dtype)
        raise UserError(f"tensors of type {name} are not understood.")
    dtype, field = _TYPES[proto.dtype]
    shape = [dim.size for dim in proto.tensor_shape.dim]
    if len(shape) > MAX_RANK:
        raise UserError(f"tensors of {len(shape)} dimensions are not understood.")
    if any(size < 0 for size in shape):
        raise UserError(f"the sizes of a shape must be 0 or more, got {shape}.")
    count = math.prod(shape)
    if count * dtype.itemsize > max_bytes:
        raise UserError(f"a tensor of shape {shape} is larger than {max_bytes} bytes.")
    if math.prod(size or 1 for size in shape) >= 2**60:  # as an empty array may have
        raise UserError(f"there are no arrays of shape {shape}.")

    content, values = proto.tensor_content, getattr(proto, field)
    if content:
        fits = dtype != np.object_ and len(content) == count * dtype.itemsize
    else:
        # Equal values at the end may be sent once, and zeros not at all.
        may_be_short = dtype != np.object_ and not must_hold_all
        fits = len(values) == count or (may_be_short and len(values) < count)
    if not fits:
        raise UserError(f"its shape {shape} needs {count} values, and it holds another number.")
    if content:
        return np.frombuffer(content, dtype.newbyteorder("<")).astype(dtype).reshape(shape)
    array = np.zeros(count, _stored(dtype))
    if values:
        try:
            array[: len(values)] = np.array(values[:], array.dtype)
        except OverflowError as error:
            raise UserError(f"{error}.") from None
        array[len(values) :] = array[len(values) - 1]
    return array.view(dtype).reshape(shape)


def each(function: Callable[[Any], Any], array: np.ndarray) -> np.ndarray:
    """The results of a function of every element, as objects."""
    return np.fromiter(map(function, array.flat), np.object_, array.size).reshape(array.shape)


def to_python(array: np.ndarray) -> Any:
    """The values of an array in lists; strings are decoded."""
    if array.dtype == np.object_:
        array = each(lambda value: value.decode(errors="replace"), array)
    return array.tolist()


def _stored(dtype: np.dtype) -> np.dtype:
    """The type of the values in a proto's field: a half is stored as its 16 bits."""
    return np.dtype(np.uint16) if dtype == np.float16 else dtype

"""Arrays as TensorProto and back, without TensorFlow."""

import math

import numpy as np

from mrnn_tf.errors import UserError
from serving.messages import DataType, TensorProto

# Per type: the array's, and the field that holds values where `tensor_content` does not.
_TYPES = {
    DataType.DT_FLOAT: (np.float32, "float_val"),
    DataType.DT_DOUBLE: (np.float64, "double_val"),
    DataType.DT_INT32: (np.int32, "int_val"),
    DataType.DT_INT64: (np.int64, "int64_val"),
    DataType.DT_BOOL: (np.bool_, "bool_val"),
    DataType.DT_STRING: (np.object_, "string_val"),
}
_OF_ARRAY = {np.dtype(kind): dtype for dtype, (kind, _) in _TYPES.items()}


def to_proto(array: np.ndarray) -> TensorProto:
    """The message of an array; strings are an object array of bytes."""
    if array.dtype not in _OF_ARRAY:
        raise UserError(f"array: no tensor type here for {array.dtype}.")
    proto = TensorProto(dtype=_OF_ARRAY[array.dtype])
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    if array.dtype == np.object_:
        proto.string_val.extend(array.flat)
    else:
        little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
        proto.tensor_content = little_endian.tobytes()
    return proto


def to_array(proto: TensorProto) -> np.ndarray:
    """The array of a message; strings are an object array of bytes."""
    if proto.dtype not in _TYPES:
        raise UserError(f"proto: tensors of {DataType.Name(proto.dtype)} are not understood.")
    kind, field = _TYPES[proto.dtype]
    shape = [dim.size for dim in proto.tensor_shape.dim]
    if proto.tensor_content:
        stored = np.frombuffer(proto.tensor_content, np.dtype(kind).newbyteorder("<"))
        return stored.astype(kind).reshape(shape)
    values = list(getattr(proto, field))
    missing = math.prod(shape) - len(values)
    if missing > 0:
        # Equal values at the end may be sent once, and default values not at all.
        values += [values[-1] if values else b"" if kind is np.object_ else 0] * missing
    return np.array(values, dtype=kind).reshape(shape)

"""TensorProto to array and back: the one codec of client and server, without TensorFlow."""

import math

import numpy as np

from mrnn_tf.errors import UserError
from serving.messages import DataType, TensorProto

MAX_BYTES = 1 << 30  # of the array that a proto may ask for
# Per type: the array's, and the field that holds the values.
_TYPES = {
    data_type: (np.dtype(kind), field)
    for data_type, kind, field in [
        (DataType.DT_FLOAT, np.float32, "float_val"),
        (DataType.DT_DOUBLE, np.float64, "double_val"),
        (DataType.DT_HALF, np.float16, "half_val"),
        (DataType.DT_INT8, np.int8, "int_val"),
        (DataType.DT_INT16, np.int16, "int_val"),
        (DataType.DT_INT32, np.int32, "int_val"),
        (DataType.DT_INT64, np.int64, "int64_val"),
        (DataType.DT_UINT8, np.uint8, "int_val"),
        (DataType.DT_UINT16, np.uint16, "int_val"),
        (DataType.DT_UINT32, np.uint32, "uint32_val"),
        (DataType.DT_UINT64, np.uint64, "uint64_val"),
        (DataType.DT_BOOL, np.bool_, "bool_val"),
        (DataType.DT_STRING, np.object_, "string_val"),
    ]
}
_DATA_TYPES = {dtype: data_type for data_type, (dtype, _) in _TYPES.items()}


def to_proto(array: np.ndarray) -> TensorProto:
    """The proto of an array, with its values in the field of their type, as TF Serving writes it.

    Strings are an object array of bytes.
    """
    if array.dtype not in _DATA_TYPES:
        raise UserError(f"`array`: arrays of {array.dtype} cannot be sent.")
    proto = TensorProto(dtype=_DATA_TYPES[array.dtype])
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    values = array.ravel().view(_stored(array.dtype))
    getattr(proto, _TYPES[proto.dtype][1]).extend(values.tolist())
    return proto


def to_array(proto: TensorProto, max_bytes: int = MAX_BYTES) -> np.ndarray:
    """The array of a proto, which is measured before anything is allocated for it.

    Raises:
        UserError: where its type is unknown, its values do not fit its shape, or the array would be
            larger than `max_bytes`.
    """
    if proto.dtype not in _TYPES:
        known = proto.dtype in DataType.values()
        name = DataType.Name(proto.dtype) if known else proto.dtype
        raise UserError(f"tensors of type {name} are not understood.")
    dtype, field = _TYPES[proto.dtype]
    shape = [dim.size for dim in proto.tensor_shape.dim]
    if any(size < 0 for size in shape):
        raise UserError(f"the sizes of a shape must be 0 or more, got {shape}.")
    count = math.prod(shape)
    if count * dtype.itemsize > max_bytes:
        raise UserError(f"a tensor of shape {shape} is larger than {max_bytes} bytes.")

    content, values = proto.tensor_content, getattr(proto, field)
    if content:
        fits = dtype != np.object_ and len(content) == count * dtype.itemsize
    else:
        # Equal values at the end may be sent once, and zeros not at all.
        fits = len(values) == count or (dtype != np.object_ and len(values) < count)
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


def _stored(dtype: np.dtype) -> np.dtype:
    """The type of the values in a proto's field: a half is stored as its 16 bits."""
    return np.dtype(np.uint16) if dtype == np.float16 else dtype

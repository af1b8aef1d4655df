"""TensorProtos to arrays and back; a proto is measured before anything is allocated for it."""

import math
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from serving import refusal
from serving.signatures import Arrays, Signature

_FIELDS = {
    tf.float32: "float_val", tf.float64: "double_val", tf.string: "string_val",
    tf.int32: "int_val", tf.int16: "int_val", tf.int8: "int_val",
    tf.uint8: "int_val", tf.uint16: "int_val", tf.int64: "int64_val",
    tf.uint32: "uint32_val", tf.uint64: "uint64_val", tf.bool: "bool_val",
}  # fmt: skip


def read(
    signature: Signature, protos: Mapping[str, tensor_pb2.TensorProto], max_bytes: int
) -> Arrays:
    """The inputs of a signature; raises `Refused` where they are not what it wants."""
    signature.check_names(protos)
    return {name: _decode(signature, name, proto, max_bytes) for name, proto in protos.items()}


def write(array: np.ndarray) -> tensor_pb2.TensorProto:
    """The proto of an output, with its values in the field of their type, as TF Serving writes."""
    dtype = tf.as_dtype(array.dtype)
    if dtype not in _FIELDS:
        return tf.make_tensor_proto(array)
    proto = tensor_pb2.TensorProto(dtype=dtype.as_datatype_enum)
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    getattr(proto, _FIELDS[dtype]).extend(array.ravel().tolist())
    return proto


def _decode(
    signature: Signature, name: str, proto: tensor_pb2.TensorProto, max_bytes: int
) -> np.ndarray:
    try:
        dtype = tf.as_dtype(proto.dtype)
    except TypeError:
        raise refusal.invalid(f"input `{name}` has the unknown type {proto.dtype}.") from None
    shape = [dim.size for dim in proto.tensor_shape.dim]
    signature.check(name, dtype, shape)
    if dtype not in _FIELDS:
        raise refusal.invalid(f"input `{name}`: tensors of {dtype.name} are not understood.")

    count, given = math.prod(shape), len(getattr(proto, _FIELDS[dtype]))
    if count * dtype.size > max_bytes:
        raise refusal.invalid(f"input `{name}` is larger than {max_bytes} bytes.")
    if proto.tensor_content:
        fits = dtype != tf.string and len(proto.tensor_content) == count * dtype.size
    else:
        # Equal values at the end may be sent once, and zeros not at all.
        fits = given == count or (dtype != tf.string and given < count)
    if not fits:
        raise refusal.invalid(f"input `{name}` has {count} values by its shape, and others inside.")
    if not given and not proto.tensor_content:
        return np.zeros(shape, dtype.as_numpy_dtype)
    try:
        return tf.make_ndarray(proto)
    except OverflowError as error:
        raise refusal.invalid(f"input `{name}`: {error}.") from None

"""The tensor codec: both ways with TensorFlow, and against senders that may send anything."""

import functools

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from mrnn_tf.errors import UserError
from serving import tensors
from serving.served_version import Refused, ServedSignature, from_proto

FROM_PROTO = functools.partial(from_proto, max_bytes=1 << 20)
NUMBERS = [tf.float16, tf.float32, tf.float64, tf.int8, tf.int16, tf.int32, tf.int64,
           tf.uint8, tf.uint16, tf.uint32, tf.uint64]  # fmt: skip
ARRAYS = {
    "floats": np.float32([[1.5, -3.4e38], [0, 1e-30]]),
    "no numbers": np.float32([np.nan, np.inf, -np.inf]),
    "halves": np.float16([[1.5, -2], [0, 6e-8]]),
    "doubles": np.float64([0.1]),
    "ints": np.int32([[[1], [-2]]]),
    "longs": np.int64([2**40, -1]),
    "truths": np.array([True, False]),
    "one number": np.float32(2.5),
    "no rows": np.zeros([0, 3], np.float32),
    "strings": np.array([[b"a", "größe".encode()], [b"", b"\xff\x00"]], np.object_),
    "no strings": np.zeros([2, 0], np.object_),
    "not in order": np.float32([[1, 2, 3], [4, 5, 6]]).T,
} | {kind.name: np.array([[1, 2], [3, 4]], kind.as_numpy_dtype) for kind in NUMBERS}


def proto(dtype, shape, **values):
    made = tensor_pb2.TensorProto(dtype=tf.as_dtype(dtype).as_datatype_enum, **values)
    for size in shape:
        made.tensor_shape.dim.add(size=size)
    return made


def same(read, array):
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize("case", ARRAYS)
def test_tensorflow_reads_what_is_written(case):
    written = tensors.to_proto(ARRAYS[case])
    assert not written.tensor_content  # but typed fields, as TF Serving has it
    same(tf.make_ndarray(written), ARRAYS[case])
    same(tensors.to_array(written), ARRAYS[case])


@pytest.mark.parametrize("compact", [False, True], ids=["constant", "as an op's output"])
@pytest.mark.parametrize("case", ARRAYS)
def test_what_tensorflow_writes_is_read(case, compact):
    array = np.asarray(ARRAYS[case])
    same(tensors.to_array(tf.make_tensor_proto(array if compact else tf.constant(array))), array)


@pytest.mark.parametrize("case", ARRAYS)
def test_values_as_bytes_are_read(case):
    array = np.asarray(ARRAYS[case])
    if array.dtype != np.object_:
        content = array.astype(array.dtype.newbyteorder("<")).tobytes()
        same(tensors.to_array(proto(array.dtype, array.shape, tensor_content=content)), array)


@pytest.mark.parametrize("values", [[1.5, 2.5, 2.5, 2.5], [7, 7, 7, 7], [0, 0, 0, 0]])
def test_values_sent_once_are_repeated(values):
    array = np.float32(values)
    short = array[: max(1, np.count_nonzero(array != array[-1]) + 1)] if array.any() else []
    sent = proto(tf.float32, [4], float_val=short)
    same(tensors.to_array(sent), array)
    same(tf.make_ndarray(sent), array)


def test_other_types_are_refused_by_name():
    with pytest.raises(UserError, match=r"array.*complex64"):
        tensors.to_proto(np.zeros(1, np.complex64))
    with pytest.raises(UserError, match="DT_COMPLEX64 are not understood"):
        tensors.to_array(tf.make_tensor_proto(np.complex64([1])))
    with pytest.raises(UserError, match="type 9999 are not understood"):
        tensors.to_array(tensor_pb2.TensorProto(dtype=9999))


def signature(dtype, shape=(None, 2)):
    return ServedSignature("m", "s", {"x": tf.TensorSpec(shape, dtype)}, ("y",), True, dict)


def read(dtype, shape, **values):
    return signature(dtype).read({"x": proto(dtype, shape, **values)}, FROM_PROTO)["x"]


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda dtype: dtype.name)
def test_a_signature_reads_both_forms(dtype):
    array = np.array([[1, 2], [3, 4]], dtype.as_numpy_dtype)
    for sent in (tf.make_tensor_proto(array), tensors.to_proto(array)):
        same(signature(dtype).read({"x": sent}, FROM_PROTO)["x"], array)


def test_strings_and_truth_values():
    words = np.array([[b"a", b"\xff\x00"]], object)
    same(signature(tf.string).read({"x": tensors.to_proto(words)}, FROM_PROTO)["x"], words)
    truth = np.array([[True, False]])
    same(signature(tf.bool).read({"x": tensors.to_proto(truth)}, FROM_PROTO)["x"], truth)


def test_equal_values_may_be_sent_once_and_zeros_not_at_all():
    assert read(tf.float32, [2, 2], float_val=[1, 3]).tolist() == [[1, 3], [3, 3]]
    assert read(tf.int32, [2, 2]).tolist() == [[0, 0], [0, 0]]


# What is sent where float32 [?, 2] is wanted; whether the codec alone refuses it; the sentence.
BAD = {
    "type": (tf.int32, [1, 2], {"int_val": [1, 2]}, False, "must be float32, got int32"),
    "rank": (tf.float32, [2], {"float_val": [1, 2]}, False, "must have the shape [?, 2], got [2]"),
    "size": (tf.float32, [1, 3], {"float_val": [1, 2, 3]}, False, "got [1, 3]"),
    "negative": (tf.float32, [-1, 2], {"float_val": [1, 2]}, True, "got [-1, 2]"),
    "absurd": (tf.float32, [2**40, 2], {"float_val": [1]}, True, "larger than"),
    "overflowing": (tf.float32, [2**62, 2], {"tensor_content": b"1234"}, True, "larger than"),
    "short": (tf.float32, [1, 2], {"tensor_content": b"1234"}, True, "[1, 2] needs 2 values"),
    "long": (tf.float32, [1, 2], {"float_val": [1, 2, 3]}, True, "[1, 2] needs 2 values"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused(case):
    dtype, shape, values, by_codec, sentence = BAD[case]
    sent = proto(dtype, shape, **values)
    with pytest.raises(Refused) as refused:
        signature(tf.float32).read({"x": sent}, FROM_PROTO)
    assert sentence in str(refused.value)
    assert "`x`" in str(refused.value)
    assert refused.value.code == grpc.StatusCode.INVALID_ARGUMENT
    if by_codec:  # so a client is as safe
        with pytest.raises(UserError) as error:
            tensors.to_array(sent)
        assert sentence in str(error.value)


def test_strings_are_counted_and_never_multiplied():
    with pytest.raises(Refused, match="needs 4 values"):
        read(tf.string, [2, 2], string_val=[b"long" * 100])
    with pytest.raises(Refused, match="needs 2 values"):
        read(tf.string, [1, 2], tensor_content=b"ab")


def test_unknown_types_and_too_large_numbers():
    strange = proto(tf.float32, [1, 2])
    strange.dtype = 9999
    with pytest.raises(Refused, match="`x`: tensors of type 9999 are not understood"):
        signature(tf.float32).read({"x": strange}, FROM_PROTO)
    with pytest.raises(Refused, match=r"`x`.*out of bounds"):
        read(tf.int8, [1, 2], int_val=[1, 300])
    with pytest.raises(Refused, match="`x`: tensors of type DT_COMPLEX64 are not understood"):
        read(tf.complex64, [1, 2], scomplex_val=[1, 2, 3, 4])


def test_missing_and_unknown_inputs():
    with pytest.raises(Refused, match="misses its input `x`"):
        signature(tf.float32).read({}, FROM_PROTO)
    with pytest.raises(Refused, match="has no input `z`, but `x`"):
        signature(tf.float32).read({"z": proto(tf.float32, [1, 2])}, FROM_PROTO)

"""TensorProtos of clients that may send anything."""

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from serving import tensor_protos
from serving.refusal import Refused
from serving.signatures import Signature

LIMIT = 1 << 20


def signature(dtype, shape=(None, 2)):
    spec = tf.TensorSpec(shape, dtype)
    return Signature("s", {"x": spec}, ("y",), True, dict)


def proto(dtype, shape, **values):
    made = tensor_pb2.TensorProto(dtype=tf.as_dtype(dtype).as_datatype_enum, **values)
    for size in shape:
        made.tensor_shape.dim.add(size=size)
    return made


def read(dtype, shape, **values):
    return tensor_protos.read(signature(dtype), {"x": proto(dtype, shape, **values)}, LIMIT)["x"]


NUMBERS = [tf.float32, tf.float64, tf.int8, tf.int16, tf.int32, tf.int64,
           tf.uint8, tf.uint16, tf.uint32, tf.uint64]  # fmt: skip


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda dtype: dtype.name)
def test_an_array_goes_there_and_back_in_both_forms(dtype):
    array = np.array([[1, 2], [3, 4]], dtype.as_numpy_dtype)
    content, fields = tf.make_tensor_proto(array), tensor_protos.write(array)
    assert not fields.tensor_content
    for sent in (content, fields):
        got = tensor_protos.read(signature(dtype), {"x": sent}, LIMIT)["x"]
        assert got.dtype == array.dtype
        np.testing.assert_array_equal(got, array)
    np.testing.assert_array_equal(tf.make_ndarray(fields), array)


def test_strings_and_truth_values():
    words = np.array([[b"a", b"\xff\x00"]], object)
    got = tensor_protos.read(signature(tf.string), {"x": tensor_protos.write(words)}, LIMIT)["x"]
    assert got.tolist() == words.tolist()
    truth = np.array([[True, False]])
    got = tensor_protos.read(signature(tf.bool), {"x": tensor_protos.write(truth)}, LIMIT)["x"]
    assert got.tolist() == truth.tolist()


def test_a_type_without_a_field_is_still_written():
    array = np.array([1.5], np.float16)
    np.testing.assert_array_equal(tf.make_ndarray(tensor_protos.write(array)), array)


def test_equal_values_may_be_sent_once_and_zeros_not_at_all():
    assert read(tf.float32, [2, 2], float_val=[1, 3]).tolist() == [[1, 3], [3, 3]]
    assert read(tf.int32, [2, 2]).tolist() == [[0, 0], [0, 0]]


BAD = {
    "type": (tf.int32, [1, 2], {"int_val": [1, 2]}, "must be float32, got int32"),
    "rank": (tf.float32, [2], {"float_val": [1, 2]}, "must have the shape [?, 2], got [2]"),
    "size": (tf.float32, [1, 3], {"float_val": [1, 2, 3]}, "got [1, 3]"),
    "negative": (tf.float32, [-1, 2], {"float_val": [1, 2]}, "got [-1, 2]"),
    "absurd": (tf.float32, [2**40, 2], {"float_val": [1]}, "larger than"),
    "overflowing": (tf.float32, [2**62, 2], {"tensor_content": b"1234"}, "larger than"),
    "short": (tf.float32, [1, 2], {"tensor_content": b"1234"}, "2 values by its shape"),
    "long": (tf.float32, [1, 2], {"float_val": [1, 2, 3]}, "2 values by its shape"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused(case):
    dtype, shape, values, sentence = BAD[case]
    with pytest.raises(Refused) as refused:
        tensor_protos.read(signature(tf.float32), {"x": proto(dtype, shape, **values)}, LIMIT)
    assert sentence in str(refused.value)
    assert "`x`" in str(refused.value)
    assert refused.value.code == grpc.StatusCode.INVALID_ARGUMENT


def test_strings_are_counted_and_never_multiplied():
    with pytest.raises(Refused, match="4 values by its shape"):
        read(tf.string, [2, 2], string_val=[b"long" * 100])
    with pytest.raises(Refused, match="2 values by its shape"):
        read(tf.string, [1, 2], tensor_content=b"ab")


def test_unknown_types_and_too_large_numbers():
    strange = proto(tf.float32, [1, 2])
    strange.dtype = 9999
    with pytest.raises(Refused, match="unknown type 9999"):
        tensor_protos.read(signature(tf.float32), {"x": strange}, LIMIT)
    with pytest.raises(Refused, match=r"`x`.*out of bounds"):
        read(tf.int8, [1, 2], int_val=[1, 300])
    with pytest.raises(Refused, match="complex64 are not understood"):
        read(tf.complex64, [1, 2], scomplex_val=[1, 2, 3, 4])


def test_missing_and_unknown_inputs():
    with pytest.raises(Refused, match="misses its input `x`"):
        tensor_protos.read(signature(tf.float32), {}, LIMIT)
    with pytest.raises(Refused, match="has no input `z`, but `x`"):
        tensor_protos.read(signature(tf.float32), {"z": proto(tf.float32, [1, 2])}, LIMIT)

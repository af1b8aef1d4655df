import numpy as np
import pytest
import tensorflow as tf

from serving import tensors

ARRAYS = {
    "floats": np.float32([[1.5, -3.4e38], [0, 1e-30]]),
    "doubles": np.float64([0.1]),
    "ints": np.int32([[[1], [-2]]]),
    "longs": np.int64([2**40, -1]),
    "truths": np.array([True, False]),
    "one number": np.float32(2.5),
    "no rows": np.zeros([0, 3], np.float32),
    "strings": np.array([[b"a", "größe".encode()], [b"", b"\xff\x00"]], np.object_),
    "no strings": np.zeros([2, 0], np.object_),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_tensorflow_reads_what_is_written(case):
    array = ARRAYS[case]
    read = tf.make_ndarray(tensors.to_proto(array))
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize("compact", [False, True], ids=["constant", "as an op's output"])
@pytest.mark.parametrize("case", ARRAYS)
def test_what_tensorflow_writes_is_read(case, compact):
    array = ARRAYS[case]
    proto = tf.make_tensor_proto(array if compact else tf.constant(array))
    read = tensors.to_array(proto)
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize("case", ARRAYS)
def test_values_in_typed_fields_are_read_as_tf_serving_sends_them(case):
    array = ARRAYS[case]
    proto = tensors.to_proto(array)
    field = {"f4": "float_val", "f8": "double_val", "i4": "int_val", "i8": "int64_val",
             "b1": "bool_val", "O": "string_val"}[array.dtype.str.lstrip("<|")]  # fmt: skip
    proto.ClearField("tensor_content")
    proto.ClearField(field)
    getattr(proto, field).extend(array.flatten().tolist())
    np.testing.assert_array_equal(tensors.to_array(proto), array)


@pytest.mark.parametrize("values", [[1.5, 2.5, 2.5, 2.5], [7, 7, 7, 7], [0, 0, 0, 0]])
def test_values_sent_once_are_repeated(values):
    array = np.float32(values)
    proto = tensors.to_proto(array)
    proto.ClearField("tensor_content")
    proto.float_val.extend(array[: max(1, np.count_nonzero(array != array[-1]) + 1)])
    if not array.any():
        proto.ClearField("float_val")
    np.testing.assert_array_equal(tensors.to_array(proto), array)
    np.testing.assert_array_equal(tf.make_ndarray(proto), array)


def test_other_types_are_refused_by_name():
    with pytest.raises(ValueError, match=r"array.*complex64"):
        tensors.to_proto(np.zeros(1, np.complex64))
    with pytest.raises(ValueError, match="DT_HALF"):
        tensors.to_array(tf.make_tensor_proto(np.float16([1])))

"""The two JSON formats of TF Serving, both ways."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from serving import json_tensors
from serving.served_version import Refused, ServedSignature


def signature(**inputs):
    specs = {name: tf.TensorSpec(shape, dtype) for name, (dtype, shape) in inputs.items()}
    return ServedSignature("m", "s", specs, ("y",), True, dict)


ONE = signature(x=(tf.float32, [None, 2]))
TWO = signature(text=(tf.string, [None]), scale=(tf.int32, [None, 1]))


def test_rows_and_columns_of_one_input():
    for body in (
        {"instances": [[1, 2.5], [3, 4]]},
        {"instances": [{"x": [1, 2.5]}, {"x": [3, 4]}]},
        {"inputs": [[1, 2.5], [3, 4]]},
        {"inputs": {"x": [[1, 2.5], [3, 4]]}},
    ):
        read = json_tensors.read(ONE, body)
        assert read["x"].dtype == np.float32
        assert read["x"].tolist() == [[1, 2.5], [3, 4]]


def test_rows_and_columns_of_several_inputs():
    for body in (
        {"instances": [{"text": "ä", "scale": [1]}, {"text": {"b64": "/wA="}, "scale": [2]}]},
        {"inputs": {"text": ["ä", {"b64": "/wA="}], "scale": [[1], [2]]}},
    ):
        read = json_tensors.read(TWO, body)
        assert read["text"].tolist() == ["ä".encode(), b"\xff\x00"]
        assert read["scale"].tolist() == [[1], [2]]


def test_bytes_of_a_single_input_are_a_value_and_no_object():
    text = signature(text=(tf.string, [None]))
    assert json_tensors.read(text, {"instances": [{"b64": "/wA="}]})["text"].tolist() == [b"\xff\0"]
    named = json_tensors.read(text, {"instances": [{"text": {"b64": "/wA="}}]})
    assert named["text"].tolist() == [b"\xff\0"]


def test_json_has_infinity_and_truth_has_its_own_type():
    assert json_tensors.read(ONE, {"inputs": [[float("inf"), 0]]})["x"][0, 0] == np.inf
    truth = signature(x=(tf.bool, [None]))
    assert json_tensors.read(truth, {"inputs": [True, False]})["x"].tolist() == [True, False]


BAD = {
    "none": (ONE, {}, "either 'instances' or 'inputs'"),
    "both": (ONE, {"instances": [[1, 2]], "inputs": [[1, 2]]}, "either"),
    "empty": (ONE, {"instances": []}, "at least one"),
    "no list": (ONE, {"instances": "x"}, "must be a list"),
    "null": (ONE, {"inputs": None}, "`x` must be float32, got JSON's NoneType"),
    "truth": (ONE, {"inputs": [[1, True]]}, "got JSON's bool"),
    "text": (ONE, {"inputs": [["1", 2]]}, "got JSON's str"),
    "deep": (ONE, {"inputs": [[[1], [2]]]}, "got JSON's list"),
    "deeper": (ONE, {"inputs": functools.reduce(lambda x, _: [x], range(50), 1)}, "more than 32"),
    "flat": (ONE, {"inputs": [1, 2]}, "must have the shape [?, 2], got [2]"),
    "ragged": (ONE, {"inputs": [[1, 2], [3]]}, "not regular"),
    "ragged rows": (ONE, {"instances": [[1, 2], 3]}, "not regular"),
    "huge": (ONE, {"inputs": [[1e39, 2]]}, "beyond float32"),
    "vast": (ONE, {"inputs": [[10**400, 2]]}, "beyond float32"),
    "mixed": (ONE, {"instances": [{"x": [1, 2]}, [1, 2]]}, "all objects, or all values"),
    "missing": (TWO, {"inputs": {"text": ["a"]}}, "misses its input `scale`"),
    "missing in a row": (TWO, {"instances": [{"text": "a"}]}, "misses its input `scale`"),
    "unknown": (TWO, {"inputs": {"text": ["a"], "scale": [[1]], "z": 1}}, "no input `z`"),
    "unnamed": (TWO, {"instances": ["a"]}, "inputs by name: `text`, `scale`"),
    "fraction": (TWO, {"inputs": {"text": ["a"], "scale": [[1.5]]}}, "got JSON's float"),
    "int": (TWO, {"inputs": {"text": ["a"], "scale": [[2**31]]}}, "beyond int32"),
    "number": (TWO, {"inputs": {"text": [1], "scale": [[1]]}}, "`text` must be strings"),
    "object": (TWO, {"inputs": {"text": [{"b": ""}], "scale": [[1]]}}, "`text` must be strings"),
    "base64": (TWO, {"inputs": {"text": [{"b64": "?"}], "scale": [[1]]}}, "not base64"),
    "letters": (TWO, {"inputs": {"text": [{"b64": "ä"}], "scale": [[1]]}}, "not base64"),
    "surrogate": (TWO, {"inputs": {"text": ["\ud800"], "scale": [[1]]}}, "not Unicode"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused(case):
    wanted, body, sentence = BAD[case]
    with pytest.raises(Refused) as refused:
        json_tensors.layout(body)
        json_tensors.read(wanted, body)
    assert sentence in str(refused.value)


def test_answers_in_rows_and_columns():
    outputs = {
        "words": np.array([[b"a", b"\xc3\xa4"], [b"\xff", b""]], object),
        "raw_bytes": np.array([b"\xff", b""], object),
        "score": np.array([0.2, -3.4e38], np.float32),
    }
    first = {"words": ["a", "ä"], "raw_bytes": {"b64": "/w=="}, "score": 0.2}
    second = {"words": ["\ufffd", ""], "raw_bytes": {"b64": ""}, "score": -3.4e38}
    assert json_tensors.write(outputs, "instances") == {"predictions": [first, second]}
    columns = {name: [first[name], second[name]] for name in outputs}
    assert json_tensors.write(outputs, "inputs") == {"outputs": columns}


def test_a_single_answer_goes_without_its_name():
    outputs = {"y": np.array([[1], [2]])}
    assert json_tensors.write(outputs, "instances") == {"predictions": [[1], [2]]}
    assert json_tensors.write(outputs, "inputs") == {"outputs": [[1], [2]]}


def test_answers_without_common_rows_need_columns():
    outputs = {"mean": np.float64(1.0) * np.ones(()), "y": np.array([1, 2])}
    assert json_tensors.write(outputs, "inputs") == {"outputs": {"mean": 1.0, "y": [1, 2]}}
    with pytest.raises(Refused, match="ask with 'inputs'"):
        json_tensors.write(outputs, "instances")

"""The client starts without TensorFlow and Keras; proven in fresh processes."""

import subprocess
import sys

import pytest


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["serving.client", "serving.commands"])
def test_neither_keras_nor_tensorflow_is_loaded(module):
    heavy = "('keras', 'tensorflow', 'tensorflow.core')"
    assert run(f"import sys, {module}; print([n for n in {heavy} if n in sys.modules])") == "[]"


def test_tensorflow_can_be_loaded_afterwards_and_shares_the_messages():
    code = """
import numpy as np
from serving import messages, tensors
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2
from tensorflow.core.framework import tensor_pb2
assert predict_pb2.PredictRequest is messages.PredictRequest
assert tensor_pb2.TensorProto is messages.TensorProto
print(tf.make_ndarray(tensors.to_proto(np.float32([1, 2]))) + tf.ones(2).numpy())
"""
    assert run(code) == "[2. 3.]"

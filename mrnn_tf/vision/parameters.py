"""The weights of an encoder's network: from a file, at random, and their fingerprint."""

import hashlib
import math
import os
import tempfile
import warnings
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from mrnn_tf import arrays
from mrnn_tf.errors import UserError
from mrnn_tf.vision.safetensors_file import read_safetensors

RANDOM = "random"
# What Keras and HDF5 raise on files of other models, and on damaged ones.
_UNREADABLE = (*arrays.DAMAGED, AttributeError)


def load(model: keras.Model, path: str) -> None:
    """Loads a Keras weights file, or arrays by name from an `.npz` or `.safetensors` file.

    A plain `.h5` is read by the order of layers. An array is named by the layer and the variable
    as Keras has them (`conv1/kernel`), or `<layer>/weights` and `<layer>/biases`. An `.npy` file
    is one vector of all values, in the order of `model.weights`. Nothing is unpickled, and NaN and
    infinity are refused. The path `RANDOM` stands for untrained weights.
    """
    if path == RANDOM:
        return randomise(model)
    if not tf.io.gfile.exists(path):
        raise FileNotFoundError(f"The weights file {path} does not exist.")
    with tempfile.TemporaryDirectory() as directory:
        local = path
        if "://" in path:
            local = os.path.join(directory, os.path.basename(path))
            tf.io.gfile.copy(path, local)
        try:
            with warnings.catch_warnings():
                # Files of older Keras versions lack groups that repeat the layers.
                warnings.filterwarnings("ignore", message="Skipping nested container")
                if path.endswith(".npy"):
                    assign_vector(model, arrays.read(local, "it"))
                elif path.endswith(".npz"):
                    assign(model, arrays.read_archive(local, "it"))
                elif path.endswith(".safetensors"):
                    assign(model, read_safetensors(local))
                else:
                    model.load_weights(local)
            check_finite(model)
        except _UNREADABLE as error:
            reason = (str(error) or type(error).__name__).splitlines()[0].split(". ")[0]
            reason = reason.rstrip(".")
            raise UserError(f"{path} does not hold weights of {model.name}: {reason}.") from error


def assign(model: keras.Model, tensors: Mapping[str, np.ndarray]) -> None:
    """Gives every variable of a model the array of its name."""
    for layer in filter(lambda layer: layer.weights, model.layers):
        names = [f"{layer.name}/{variable.name}" for variable in layer.weights]
        if not tensors.keys() >= {*names}:
            names = [f"{layer.name}/{kind}" for kind in ("weights", "biases")[: len(names)]]
        layer.set_weights([tensors[name] for name in names])


def assign_vector(model: keras.Model, vector: np.ndarray) -> None:
    """Gives the variables of a model, one after the other, their part of a vector of floats."""
    sizes = [math.prod(variable.shape) for variable in model.weights]
    if vector.dtype.kind != "f" or vector.shape != (sum(sizes),):
        got = f"{vector.dtype} {list(vector.shape)}"
        raise ValueError(f"a vector of {sum(sizes)} floats is wanted, got {got}")
    parts = np.split(vector, np.cumsum(sizes)[:-1])
    for variable, values in zip(model.weights, parts, strict=True):
        variable.assign(values.reshape(variable.shape))


def check_finite(model: keras.Model) -> None:
    for variable in model.weights:
        if not np.isfinite(variable.numpy()).all():
            raise ValueError(f"{variable.path} has NaN or infinity")


def randomise(model: keras.Model) -> None:
    """Draws every kernel from He's normal distribution, with the same values in every process."""
    for seed, variable in enumerate(model.weights):
        shape = variable.shape
        if len(shape) > 1:
            is_depthwise = len(shape) == 4 and shape[-1] == 1
            fan_in = math.prod(shape[:2] if is_depthwise else shape[:-1])
            variable.assign(keras.random.normal(shape, stddev=math.sqrt(2 / fan_in), seed=seed))


def sha256(model: keras.Model) -> str:
    """Hex digest of the shapes and values of a model's weights, whatever their names."""
    digest = hashlib.sha256()
    for variable in model.weights:
        value = np.ascontiguousarray(variable.numpy(), "<f4")
        digest.update(str(value.shape).encode())
        digest.update(value)
    return digest.hexdigest()

"""The weights of an encoder's network: from a file, at random, and their fingerprint."""

import hashlib
import math
import os
import tempfile
import warnings
import zipfile

import keras
import numpy as np
import tensorflow as tf

from mrnn_tf.errors import UserError

RANDOM = "random"
_UNREADABLE = (EOFError, KeyError, OSError, TypeError, ValueError, zipfile.BadZipFile)


def load(model: keras.Model, path: str) -> None:
    """Loads a Keras weights file, or an `.npz` of arrays `<layer>/weights` and `<layer>/biases`.

    A plain `.h5` is read by the order of layers. The path `RANDOM` stands for untrained weights.
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
                read = _load_arrays if path.endswith(".npz") else keras.Model.load_weights
                read(model, local)
        except _UNREADABLE as error:
            reason = str(error).splitlines()[0].split(". ")[0]
            raise UserError(f"{path} does not hold weights of {model.name}: {reason}.") from error


def _load_arrays(model: keras.Model, path: str) -> None:
    with np.load(path, allow_pickle=False) as arrays:
        for layer in model.layers:
            kinds = ("weights", "biases")[: len(layer.weights)]
            layer.set_weights([arrays[f"{layer.name}/{kind}"] for kind in kinds])


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

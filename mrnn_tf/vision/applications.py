"""The encoders of keras.applications, each cut where its features are."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable

import keras
import tensorflow as tf

from mrnn_tf.vision import grouped_conv, parameters


@dataclasses.dataclass(frozen=True)
class Backbone:
    """What differs from one encoder to the next.

    `scaling` names what `preprocess` does: `caffe` is BGR less the mean pixel, `tf` is -1..1, `raw`
    leaves 0..255 to a layer of the network.
    """

    load: Callable[[str | None], keras.Model]
    preprocess: Callable[[tf.Tensor], tf.Tensor]
    input_size: int
    scaling: str


def load(
    constructor: Callable, input_size: int, feature_layer: str | None, weights: str | None = None
) -> keras.Model:
    """A network up to `feature_layer` or its global average pool; by default with ImageNet weights.

    A weights file is of this network, or as published in `.h5`: with the classifier where there is
    a `feature_layer`, without it otherwise.
    """
    options = {"weights": "imagenet" if weights is None else None}
    if feature_layer is None:
        options |= {"include_top": False, "pooling": "avg"}
        options |= {"input_shape": (input_size, input_size, 3)}
    with _DownloadErrors(constructor.__name__):
        published = grouped_conv.without_xla(constructor(**options))
    model = published
    if feature_layer is not None:
        features = published.get_layer(feature_layer).output
        model = keras.Model(published.input, features, name=published.name)
    if weights is not None:
        # A legacy `.h5` is read by the order of all its layers, the classifier included.
        legacy = weights.endswith(".h5") and not weights.endswith(".weights.h5")
        parameters.load(published if legacy else model, weights)
    return model


class _DownloadErrors(contextlib.AbstractContextManager):
    """Turns Keras' download errors, bare `Exception`s raised from an OSError, into a sentence."""

    def __init__(self, network: str):
        self._network = network

    def __exit__(self, kind, error, traceback):
        if isinstance(error, OSError) or isinstance(getattr(error, "__context__", None), OSError):
            raise OSError(
                f"The ImageNet weights of {self._network} could not be downloaded ({error}): "
                "give a file as `encoder_weights`."
            ) from error


def _application(module, name: str, size: int, scaling: str, layer: str | None = None) -> Backbone:
    network = functools.partial(load, getattr(module, name), size, layer)
    return Backbone(network, module.preprocess_input, size, scaling)


_networks = keras.applications
APPLICATIONS = {
    "vgg16": _application(_networks.vgg16, "VGG16", 224, "caffe", "fc2"),
    "vgg19": _application(_networks.vgg19, "VGG19", 224, "caffe", "fc2"),
    "resnet50": _application(_networks.resnet50, "ResNet50", 224, "caffe"),
    "inception_v3": _application(_networks.inception_v3, "InceptionV3", 299, "tf"),
    "mobilenet_v2": _application(_networks.mobilenet_v2, "MobileNetV2", 224, "tf"),
    "efficientnet_v2_b0": _application(_networks.efficientnet_v2, "EfficientNetV2B0", 224, "raw"),
    "efficientnet_v2_s": _application(_networks.efficientnet_v2, "EfficientNetV2S", 384, "raw"),
    "convnext_tiny": _application(_networks.convnext, "ConvNeXtTiny", 224, "raw"),
}

"""How pixels of 0..255 are scaled for networks that come without that knowledge."""

from collections.abc import Callable

import tensorflow as tf

_MEAN, _DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # of ImageNet, RGB

SCALINGS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "raw": lambda pixels: pixels,
    "unit": lambda pixels: pixels / 255.0,
    "tf": lambda pixels: pixels / 127.5 - 1.0,
    "imagenet": lambda pixels: (pixels - _MEAN) / _DEVIATION,
}

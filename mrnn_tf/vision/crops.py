"""The windows of an image that are encoded: the whole image, or the paper's ten crops."""

import tensorflow as tf

from mrnn_tf.errors import UserError
from mrnn_tf.vision import images

COUNTS = (1, 10)


def windows(image: tf.Tensor, crops: int, size: int) -> tf.Tensor:
    """Windows of one image, float32 [crops, size, size, 3] in 0..255.

    One crop is the whole image warped to the window. Ten crops keep the paper's proportion:
    windows of 224 pixels on a short side of 256.
    """
    if crops == 1:
        return images.resize(image, size, size)[tf.newaxis]
    return ten_crop(image, round(size * 256 / 224), size)


def ten_crop(image: tf.Tensor, short_side: int = 256, size: int = 224) -> tf.Tensor:
    """Ten windows of an image [h, w, 3] resized to a short side: float32 [10, size, size, 3].

    In order: top left, top right, bottom left, bottom right, centre; then the same mirrored.
    """
    if short_side < size:
        raise UserError(f"`short_side` must be at least `size` ({size}), received {short_side}.")
    sides = tf.shape(image)[:2]
    shortest = tf.reduce_min(sides)
    scaled = (sides * short_side + shortest // 2) // shortest  # rounded
    # A strip is squeezed, or one pixel by thousands would be enlarged to gigabytes.
    height, width = tf.unstack(tf.minimum(scaled, images.STRIP * short_side))
    resized = images.resize(image, height, width)
    bottom, right = height - size, width - size
    corners = [(0, 0), (0, right), (bottom, 0), (bottom, right), (bottom // 2, right // 2)]
    straight = tf.stack([resized[y : y + size, x : x + size] for y, x in corners])
    straight = tf.ensure_shape(straight, [len(corners), size, size, 3])
    return tf.concat([straight, straight[:, :, ::-1]], axis=0)

"""From encoded bytes to RGB pixels, and from pixels to other sizes, as TensorFlow ops."""

import tensorflow as tf


def decode(encoded: tf.Tensor) -> tf.Tensor:
    """RGB pixels, uint8 [h, w, 3], of one JPEG, PNG, GIF or BMP byte string.

    Greyscale, CMYK, palette and 16-bit images become 8-bit RGB, alpha is dropped, and of an
    animation the first frame is taken. An 8-bit BMP is read as greyscale.

    Raises:
        tf.errors.InvalidArgumentError: where the bytes are truncated or no such image.
    """
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    return tf.ensure_shape(image, [None, None, 3])


def resize(image: tf.Tensor, height: tf.Tensor | int, width: tf.Tensor | int) -> tf.Tensor:
    """The image warped bicubically to a size, float32 in 0..255, as Pillow's bicubic filter."""
    resized = tf.image.resize(image, [height, width], method="bicubic", antialias=True)
    return tf.clip_by_value(resized, 0.0, 255.0)

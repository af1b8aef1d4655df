"""From encoded bytes to RGB pixels, and from pixels to other sizes, as TensorFlow ops."""

import tensorflow as tf

from mrnn_tf.config import MAX_PIXELS
from mrnn_tf.vision import headers

STRIP = 16  # an image longer than this many short sides is a strip
PICTURE_SIDE = 256  # the short side of a small picture; the long one has at most four times as much
_QUALITY = 80  # of JPEG


@tf.function(input_signature=[tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int64)])
def decode(encoded: tf.Tensor, max_pixels: tf.Tensor | int = MAX_PIXELS) -> tf.Tensor:
    """Upright RGB pixels, uint8 [h, w, 3], of one JPEG, PNG, GIF or BMP byte string.

    A JPEG or PNG is rotated and mirrored by its EXIF orientation. Greyscale, CMYK, palette and
    16-bit images become 8-bit RGB, alpha is dropped, and of an animation the first frame is taken.
    A BMP must have 24 or 32 bits a pixel, uncompressed. With 8 bits its palette is ignored: right
    for greyscale, wrong for colours. `photos.load` converts the others before they are sent.

    Raises:
        tf.errors.InvalidArgumentError: where the bytes are truncated or no such image, or their
            header says more than `max_pixels` or a side above 65,535: then nothing is decoded.
    """
    encoded = headers.first_frame(encoded)
    encoded = tf.where(headers.pixels(encoded) <= max_pixels, encoded, b"")
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    image = tf.ensure_shape(image, [None, None, 3])
    orientation = headers.orientation(encoded)
    return image if orientation == 1 else _upright(image, orientation)


def _upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    if orientation >= 5:
        image = tf.transpose(image, [1, 0, 2])
    if tf.reduce_any(orientation == [2, 3, 6, 7]):
        image = image[:, ::-1]
    if tf.reduce_any(orientation == [3, 4, 7, 8]):
        image = image[::-1]
    return image


def resize(image: tf.Tensor, height: tf.Tensor | int, width: tf.Tensor | int) -> tf.Tensor:
    """The image warped bicubically to a size, float32 in 0..255, as Pillow's bicubic filter."""

    # The op resizes the height first: that enlarges a wide strip, in float32, so it is turned.
    def turned():
        return tf.transpose(_resize(tf.transpose(image, [1, 0, 2]), width, height), [1, 0, 2])

    is_wide_strip = tf.shape(image)[1] > STRIP * tf.shape(image)[0]
    return tf.cond(is_wide_strip, turned, lambda: _resize(image, height, width))


def picture(image: tf.Tensor) -> tf.Tensor:
    """A small JPEG of uint8 pixels [h, w, 3], for people; it holds nothing but the pixels."""
    sides = tf.cast(tf.shape(image)[:2], tf.float64)
    short, long = tf.reduce_min(sides), tf.reduce_max(sides)
    return small_jpeg(image, tf.minimum(PICTURE_SIDE / short, 4 * PICTURE_SIDE / long))


@tf.function(
    input_signature=[tf.TensorSpec([None, None, 3], tf.uint8), tf.TensorSpec([], tf.float64)]
)
def small_jpeg(image: tf.Tensor, scale: tf.Tensor | float) -> tf.Tensor:
    """A JPEG of uint8 pixels [h, w, 3] whose sides are scaled, if that makes them smaller."""
    if scale < 1:
        sides = tf.round(tf.cast(tf.shape(image)[:2], tf.float64) * scale)
        sides = tf.maximum(1, tf.cast(sides, tf.int32))
        image = tf.cast(tf.round(tf.image.resize(image, sides, "area")), tf.uint8)
    return tf.io.encode_jpeg(image, quality=_QUALITY)


def _resize(image: tf.Tensor, height: tf.Tensor | int, width: tf.Tensor | int) -> tf.Tensor:
    turned = tf.transpose(_resize_height(image, height), [1, 0, 2])
    resized = tf.transpose(_resize_height(turned, width), [1, 0, 2])
    return tf.clip_by_value(resized, 0.0, 255.0)


def _resize_height(image: tf.Tensor, height: tf.Tensor | int) -> tf.Tensor:
    """Bicubic; a row is one pixel with many channels, over which the op's inner loop runs."""
    rows, columns, _ = tf.unstack(tf.shape(image))
    pixels = tf.reshape(image, [rows, 1, 3 * columns])
    resized = tf.image.resize(pixels, [height, 1], method="bicubic", antialias=True)
    return tf.reshape(resized, [height, columns, 3])

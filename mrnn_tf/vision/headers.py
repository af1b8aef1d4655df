"""What the header of an encoded image says, read by TensorFlow ops before anything is decoded.

Any bytes are safe to read: loops are bounded, and beyond the end all bytes are zero.
"""

import math

import numpy as np
import tensorflow as tf

_JPEG, _PNG, _GIF, _BMP = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM"

# The most steps of each loop. A GIF's sub-block has up to 255 bytes, so its first frame 16 MB.
_SEGMENTS, _EXTENSIONS, _EXTENSION_BLOCKS, _FRAME_BLOCKS = 64, 32, 1 << 11, 1 << 16
_TIFF_BYTES, _TIFF_ENTRIES = 1 << 16, 128
_ORIENTATION, _SHORT = 0x0112, 3  # a tag of EXIF, and the type of its value
_UNKNOWN = 1 << 31  # as long as a side can be: no limit allows it


def pixels(content: tf.Tensor) -> tf.Tensor:
    """Height times width, int64, as the decoder will read them; 2^62 where there are none.

    Of a GIF, which begins with its frame as `first_frame` makes it, the larger of screen and frame.
    """
    if _begins(content, _JPEG):
        sides = tf.cast(tf.image.extract_jpeg_shape(content)[:2], tf.int64)
    elif _begins(content, _GIF):
        frame = _bytes(content, 13 + _colour_table(content, 10) + 5, [2, 2])
        both = _number(tf.stack([frame, _bytes(content, 6, [2, 2])]), little=True)
        sides = tf.reduce_max(both, axis=0)
    else:
        head = _bytes(content, 0, [26])
        is_png = _begins(content, _PNG) & (_text(content, 12, 4) == b"IHDR")
        png = _number(tf.reshape(head[16:24], [2, 4]))
        bmp = _number(tf.reshape(head[18:26], [2, 4]), little=True)
        bmp = tf.minimum(bmp, (1 << 32) - bmp)  # where rows go from the top, the height is negative
        sides = tf.where(_begins(content, _BMP), bmp, _UNKNOWN)
        sides = tf.where(is_png, png, sides)
    return tf.reduce_prod(tf.minimum(sides, _UNKNOWN))


def first_frame(content: tf.Tensor) -> tf.Tensor:
    """A GIF with nothing but its first frame, since TensorFlow decodes all frames that it finds.

    A damaged GIF becomes empty; what is no GIF is returned as it is.
    """
    return _first_frame(content) if _begins(content, _GIF) else content


def _first_frame(gif: tf.Tensor) -> tf.Tensor:
    header = 13 + _colour_table(gif, 10)
    [frame] = tf.while_loop(
        lambda position: _text(gif, position, 1) == b"!",
        lambda position: [_after_blocks(gif, position + 2, _EXTENSION_BLOCKS)],
        [header],
        maximum_iterations=_EXTENSIONS,
    )
    data = frame + 10 + _colour_table(gif, frame + 9) + 1
    end = _after_blocks(gif, data, _FRAME_BLOCKS)
    is_whole = (_text(gif, frame, 1) == b",") & (end <= _length(gif))
    # The frame's place on the screen, four bytes, becomes the corner: the frame is the image.
    image = _text(gif, frame + 5, end - frame - 5)
    first = tf.strings.join([_text(gif, 0, header), b",\0\0\0\0", image, b";"])
    return tf.where(is_whole, first, b"")


def _colour_table(gif: tf.Tensor, flags: tf.Tensor | int) -> tf.Tensor:
    """The size of the colour table that the byte at `flags` announces."""
    value = _byte(gif, flags)
    return tf.where(value >= 128, 6 * 2 ** (value % 8), 0)


def _after_blocks(gif: tf.Tensor, position: tf.Tensor, most: int) -> tf.Tensor:
    """The place after sub-blocks, each with its length before it, and the empty one at the end."""
    [position] = tf.while_loop(
        lambda position: _byte(gif, position) > 0,
        lambda position: [position + 1 + _byte(gif, position)],
        [position],
        maximum_iterations=most,
    )
    return position + 1


def orientation(content: tf.Tensor) -> tf.Tensor:
    """The EXIF orientation of a JPEG or PNG, int64 1 to 8; 1 where none can be read."""
    tiff = _exif(content)
    return np.int64(1) if tiff == b"" else _tiff_orientation(tiff)


def _tiff_orientation(tiff: tf.Tensor) -> tf.Tensor:
    little = _text(tiff, 0, 4) == b"II*\0"
    is_tiff = little | (_text(tiff, 0, 4) == b"MM\0*")
    directory = _number(_bytes(tiff, 4, [4]), little)
    count = _number(_bytes(tiff, directory, [2]), little)
    entries = _bytes(tiff, directory + 2, [_TIFF_ENTRIES, 12])
    tags, kinds, values = (_number(entries[:, at : at + 2], little) for at in (0, 2, 8))
    is_there = tf.range(_TIFF_ENTRIES, dtype=tf.int64) < count
    is_wanted = is_there & (tags == _ORIENTATION) & (kinds == _SHORT)
    value = tf.reduce_max(tf.where(is_wanted, values, 0))
    return tf.where(is_tiff & (value >= 1) & (value <= 8), value, 1)


def _exif(content: tf.Tensor) -> tf.Tensor:
    """The TIFF structure in the EXIF segment of a JPEG, or in that chunk of a PNG; else empty.

    A segment is FF, its kind, its length (2 bytes, which count) and "Exif\\0\\0"; a chunk is its
    length (4 bytes), "eXIf" and, beyond that length, a check sum.
    """
    is_png = _begins(content, _PNG)
    name = tf.where(is_png, b"eXIf", b"Exif")
    first, added, header = tf.unstack(tf.where(is_png, np.int64([8, 12, 8]), np.int64([2, 2, 10])))

    def size(position):
        head = _bytes(content, position, [4])
        return added + tf.where(is_png, _number(head), _number(head[2:]))

    def is_exif(position):
        return _text(content, position + 4, 4) == name

    def is_other(position):
        is_segment = is_png | (_text(content, position, 1) == b"\xff")
        return is_segment & ~is_exif(position) & (position < _length(content))

    [position] = tf.while_loop(
        is_other,
        lambda position: [position + size(position)],
        [first],
        maximum_iterations=_SEGMENTS,
    )
    length = tf.clip_by_value(size(position) - header, 0, _TIFF_BYTES)
    return tf.where(is_exif(position), _text(content, position + header, length), b"")


def _begins(content: tf.Tensor, magic: bytes) -> tf.Tensor:
    return tf.strings.substr(content, 0, len(magic)) == magic


def _length(content: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.strings.length(content), tf.int64)


def _text(content: tf.Tensor, start: tf.Tensor | int, count: tf.Tensor | int) -> tf.Tensor:
    """Up to `count` bytes from `start`, as a string; fewer at the end."""
    return tf.strings.substr(content, tf.minimum(_length(content), start), count)


def _bytes(content: tf.Tensor, start: tf.Tensor | int, shape: list[int]) -> tf.Tensor:
    """Bytes from `start`, int64 in some shape; zeros beyond the end."""
    count = math.prod(shape)
    padded = tf.strings.join([_text(content, start, count), b"\0" * count])
    return tf.cast(tf.reshape(tf.io.decode_raw(padded, tf.uint8)[:count], shape), tf.int64)


def _byte(content: tf.Tensor, position: tf.Tensor | int) -> tf.Tensor:
    return _bytes(content, position, [1])[0]


def _number(digits: tf.Tensor, little: tf.Tensor | bool = False) -> tf.Tensor:
    """The numbers [...] of bytes [..., n], the most or the least significant first."""
    powers = np.int64(256) ** np.arange(digits.shape[-1])[::-1]
    if not isinstance(little, bool):
        powers = tf.where(little, powers[::-1], powers)
    elif little:
        powers = powers[::-1]
    return tf.reduce_sum(digits * powers, axis=-1)

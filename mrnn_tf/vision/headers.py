"""What the header of an encoded image says, read by TensorFlow ops before anything is decoded.

No bytes make these functions run for long: the steps of their loops are limited, and bytes beyond
the end count as zeros. Only the header is checked: the decoder may refuse the rest. Only `pixels`
can fail, on a JPEG that TensorFlow finds no size in.
"""

import math

import numpy as np
import tensorflow as tf

_JPEG, _PNG, _GIF, _BMP = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM"

# The most steps of the loops. Encoders fill a GIF's sub-blocks, of up to 255 bytes each; all but
# hostile files have more than 32 bytes in a sub-block on average.
_SEGMENTS, _SUB_BLOCKS, _SUB_BLOCK_BYTES = 64, 1 << 16, 32
_TIFF_BYTES, _TIFF_ENTRIES = 1 << 16, 128
_ORIENTATION, _SHORT = 0x0112, 3  # a tag of EXIF, and the type of its value
_START_OF_SCAN = 0xDA  # the last segment of a JPEG's header
# Bytes without a name of EXIF have none; to look for one is faster than to follow the segments of
# a small file.
_NAMES, _SMALL = r"\C*(?:Exif|eXIf)\C*", 1 << 17
_LONGEST_SIDE = 65_535  # of a JPEG or GIF; a PNG or BMP could have a strip of gigabytes
_UNKNOWN = 1 << 62  # no limit allows it


def pixels(content: tf.Tensor) -> tf.Tensor:
    """Height times width, int64, as the decoder will read them.

    2^62 where the header has no size or a side above 65,535. A GIF must come from `first_frame`:
    its size is the larger of screen and frame.

    Raises:
        tf.errors.InvalidArgumentError: where a JPEG is damaged before its size.
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
    is_known = tf.reduce_max(sides) <= _LONGEST_SIDE
    return tf.where(is_known, tf.reduce_prod(sides), _UNKNOWN)


def first_frame(content: tf.Tensor) -> tf.Tensor:
    """A GIF with nothing but its first frame, since TensorFlow decodes all frames that it finds.

    What is no GIF is returned as it is. A GIF becomes empty where its first frame is not whole, or
    where the sub-blocks up to its end are more than 65,536, or more than a 32nd of the file's bytes
    and 16: following them would take longer than decoding.
    """
    return _first_frame(content) if _begins(content, _GIF) else content


def _first_frame(gif: tf.Tensor) -> tf.Tensor:
    length = _length(gif)
    values = tf.io.decode_raw(tf.strings.join([gif, b"\0"]), tf.uint8)

    def value(position):
        return tf.cast(tf.gather(values, tf.minimum(position, length)), tf.int64)

    def after_blocks(position, steps):
        """The place after sub-blocks, each behind its size, and the empty one at the end."""
        position, steps = tf.while_loop(
            lambda position, steps: (value(position) > 0) & (steps > 0),
            lambda position, steps: (position + 1 + value(position), steps - 1),
            (position, steps),
        )
        return position + 1, steps - 1

    header = 13 + _colour_table(gif, 10)
    frame, steps = tf.while_loop(
        lambda position, steps: (value(position) == ord("!")) & (steps > 0),
        lambda position, steps: after_blocks(position + 2, steps),  # an extension
        (header, tf.minimum(length // _SUB_BLOCK_BYTES + 16, _SUB_BLOCKS)),
    )
    end, steps = after_blocks(frame + 10 + _colour_table(gif, frame + 9) + 1, steps)
    is_whole = (value(frame) == ord(",")) & (end <= length) & (steps >= 0)
    # The frame's place on the screen, four bytes, becomes the corner: the frame is the image.
    image = _text(gif, frame + 5, end - frame - 5)
    first = tf.strings.join([_text(gif, 0, header), b",\0\0\0\0", image, b";"])
    return tf.where(is_whole, first, b"")


def _colour_table(gif: tf.Tensor, flags: tf.Tensor | int) -> tf.Tensor:
    """The size of the colour table that the byte at `flags` announces."""
    [value] = tf.unstack(_bytes(gif, flags, [1]))
    return tf.where(value >= 128, 6 * 2 ** (value % 8), 0)


def orientation(content: tf.Tensor) -> tf.Tensor:
    """The EXIF orientation of a JPEG or PNG, int64 1 to 8; 1 where none can be read."""
    may_have = _length(content) > _SMALL or tf.strings.regex_full_match(content, _NAMES)
    tiff = _exif(content) if may_have else b""
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

    A segment is FF (any number of times), its kind, its length (2 bytes, which count) and
    "Exif\\0\\0"; a chunk is its length (4 bytes), "eXIf" and, beyond that length, a check sum.
    """
    is_png = _begins(content, _PNG)
    name = tf.where(is_png, np.int64([*b"eXIf"]), np.int64([*b"Exif"]))
    first, added, header = tf.unstack(tf.where(is_png, np.int64([8, 12, 8]), np.int64([2, 2, 10])))
    digits = tf.where(is_png, np.int64([1 << 24, 1 << 16, 256, 1]), np.int64([0, 0, 256, 1]))

    def size(head):
        is_fill = tf.reduce_all(head[:2] == 0xFF)
        return tf.where(is_fill, np.int64(1), added + tf.reduce_sum(head[:4] * digits))

    def is_other(position, head):
        del position
        is_segment = (head[0] == 0xFF) & (head[1] != _START_OF_SCAN)
        is_there = tf.where(is_png, head[4] > 0, is_segment)
        return is_there & tf.reduce_any(head[4:] != name)

    def following(position, head):
        position += size(head)
        return position, _bytes(content, position, [8])

    position, head = tf.while_loop(
        is_other, following, (first, _bytes(content, first, [8])), maximum_iterations=_SEGMENTS
    )
    length = tf.clip_by_value(size(head) - header, 0, _TIFF_BYTES)
    is_exif = tf.reduce_all(head[4:] == name)
    return tf.where(is_exif, _text(content, position + header, length), b"")


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


def _number(digits: tf.Tensor, little: tf.Tensor | bool = False) -> tf.Tensor:
    """The numbers [...] of bytes [..., n], the most or the least significant first."""
    powers = np.int64(256) ** np.arange(digits.shape[-1])[::-1]
    if not isinstance(little, bool):
        powers = tf.where(little, powers[::-1], powers)
    elif little:
        powers = powers[::-1]
    return tf.reduce_sum(digits * powers, axis=-1)

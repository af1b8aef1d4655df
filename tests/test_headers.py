"""What headers say: orientations, sizes and first frames, of good files and of hostile ones."""

import io
import struct
import time

import bombs
import hypothesis
import numpy as np
import pytest
import skimage.data
import tensorflow as tf
from hypothesis import strategies as st
from PIL import Image, ImageOps

from mrnn_tf.vision import headers, images

ORIENTATION = 0x0112
STRING = [tf.TensorSpec([], tf.string)]
orientation = tf.function(headers.orientation, input_signature=STRING)
pixels = tf.function(headers.pixels, input_signature=STRING)
first_frame = tf.function(headers.first_frame, input_signature=STRING)


def encoded(image, kind, **options):
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def photograph(kind="JPEG", value=None, **options):
    exif = Image.Exif()
    if value is not None:
        exif[ORIENTATION] = value
    picture = Image.fromarray(skimage.data.coffee()[:60, 100:180])
    return encoded(picture, kind, exif=exif, **options)


def tiff(value, order="<", offset=8, kind=3, entries=2):
    """A TIFF structure whose last entry is the orientation."""
    mark = b"II*\0" if order == "<" else b"MM\0*"
    other = struct.pack(order + "HHII", 0x010F, 2, 1, 0)
    wanted = struct.pack(order + "HHIHH", ORIENTATION, kind, 1, value, 0)
    directory = struct.pack(order + "H", entries) + other * (entries - 1) + wanted + bytes(4)
    return mark + struct.pack(order + "I", offset) + bytes(offset - 8) + directory


def segment(kind, content):
    return b"\xff" + bytes([kind]) + struct.pack(">H", len(content) + 2) + content


def with_segments(*segments, content=None):
    content = photograph() if content is None else content
    return content[:2] + b"".join(segments) + content[2:]


def exif(structure):
    return segment(0xE1, b"Exif\0\0" + structure)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("value", [None, *range(1, 9)])
def test_pixels_are_upright_as_pillow_makes_them(kind, value):
    content = photograph(kind, value)
    assert orientation(content) == (value or 1)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    decoded = images.decode(content).numpy().astype(int)
    np.testing.assert_allclose(decoded, np.asarray(expected), atol=4)


@pytest.mark.parametrize("order", ["<", ">"])
def test_both_byte_orders_and_other_segments_before(order):
    for value in range(1, 9):
        structure = tiff(value, order, offset=8 + 10 * value, entries=value)
        assert orientation(with_segments(exif(structure))) == value
        profile = segment(0xE2, b"ICC_PROFILE\0" + bytes(60_000))
        xmp = segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + b"Exif\0\0" * 9)
        content = with_segments(segment(0xE0, b"JFIF\0"), profile, profile, xmp, exif(structure))
        assert orientation(content) == value
        assert images.decode(content).shape == ((60, 80, 3) if value < 5 else (80, 60, 3))


@pytest.mark.parametrize("profiles", [0, 1, 2, 3])  # a name is looked for in up to 128 kB
def test_orientations_of_small_and_large_files(profiles):
    profile = segment(0xE2, b"ICC_PROFILE\0" + bytes(60_000))
    assert orientation(with_segments(*[profile] * profiles)) == 1
    assert orientation(with_segments(*[profile] * profiles, exif(tiff(6)))) == 6


@pytest.mark.parametrize("fill", [1, 2, 7, 50])
def test_fill_bytes_before_segments_are_skipped(fill):
    content = with_segments(b"\xff" * fill, segment(0xFE, b"text"), b"\xff\xff", exif(tiff(6)))
    assert Image.open(io.BytesIO(content)).getexif()[ORIENTATION] == 6
    assert orientation(content) == 6 and images.decode(content).shape == (80, 60, 3)


def test_no_segment_is_found_behind_the_start_of_the_scan():
    content = encoded(Image.new("RGB", (80, 60)), "JPEG")
    start = content.index(b"\xff\xda")
    assert orientation(content[:start] + exif(tiff(6)) + content[start:]) == 6
    scan = segment(0xDA, content[start + 4 : start + 14])
    assert orientation(content[:start] + scan + exif(tiff(6))) == 1


@pytest.mark.parametrize(
    "structure",
    [
        b"", b"II*\0", b"XX*\0" + tiff(6)[4:], tiff(0), tiff(9), tiff(6, kind=4), tiff(6)[:-12],
        tiff(6, entries=1).replace(b"\x01\0", b"\0\0", 1), b"II*\0" + struct.pack("<I", 2**32 - 1),
        b"II*\0" + struct.pack("<I", 8) + b"\xff\xff",
    ],
)  # fmt: skip
def test_what_is_no_orientation_is_1(structure):
    content = with_segments(exif(structure))
    assert orientation(content) == 1
    np.testing.assert_array_equal(images.decode(content), images.decode(photograph()))


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff", b"\xff\xd8\xff", b"\xff\xd8" + b"\xff\xe0\0\0" * 100_000,
        b"\xff\xd8" + b"\xff" * 100_000, b"\x89PNG\r\n\x1a\n" + bytes(100_000),
        b"\x89PNG\r\n\x1a\n" + b"\xff" * 100, with_segments(exif(tiff(6)))[:40],
        with_segments(segment(0xE0, b"a") * 70, exif(tiff(6))),
    ],
)  # fmt: skip
def test_no_segment_is_followed_for_ever(content):
    assert orientation(content) == 1


EXIF_LENGTH = len(exif(tiff(6)))


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(
    st.dictionaries(st.integers(0, EXIF_LENGTH + 30), st.integers(0, 255), max_size=12),
    st.one_of(st.none(), st.integers(0, 200)),
    st.sampled_from(["<", ">"]),
)
def test_damaged_exif_is_an_orientation_and_no_error(changes, length, order):
    content = bytearray(with_segments(exif(tiff(6, order))))
    for place, value in changes.items():
        content[2 + place] = value
    content = bytes(content[:length])
    assert 1 <= orientation(content) <= 8
    try:
        decoded = images.decode(content)
    except tf.errors.InvalidArgumentError:
        return
    assert decoded.shape in ((60, 80, 3), (80, 60, 3))


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(
    st.sampled_from([b"", b"\xff\xd8\xff\xe1", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM"]),
    st.binary(max_size=300),
)
def test_bytes_from_anywhere_fail_as_an_image_that_cannot_be_decoded(magic, content):
    with pytest.raises(tf.errors.InvalidArgumentError):
        images.decode(magic + content)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP"])
def test_the_size_is_known_before_decoding(kind):
    picture = Image.new("RGB", (70, 30), "red")
    content = encoded(picture, kind)
    assert pixels(content) == 70 * 30
    assert images.decode(content, 70 * 30).shape == (30, 70, 3)
    with pytest.raises(tf.errors.InvalidArgumentError):
        images.decode(content, 70 * 30 - 1)
    if kind != "PNG":
        assert pixels(bombs.resized(content, 60_000, 50_000)) == 3_000_000_000
        with pytest.raises(tf.errors.InvalidArgumentError):
            images.decode(bombs.resized(content, 60_000, 50_000))


def test_sizes_of_progressive_jpegs_rows_from_the_top_and_screens():
    picture = Image.new("RGB", (70, 30), "red")
    assert pixels(encoded(picture, "JPEG", progressive=True)) == 2100
    upside_down = bombs.resized(encoded(picture, "BMP"), 70, -30)
    assert pixels(upside_down) == 2100 and images.decode(upside_down).shape == (30, 70, 3)
    gif = encoded(picture, "GIF")
    assert pixels(gif[:6] + struct.pack("<2H", 900, 800) + gif[10:]) == 720_000


def test_sides_above_65535_are_refused():
    for kind in ("PNG", "BMP"):
        strips = [encoded(Image.new("RGB", size), kind) for size in ((65_535, 1), (1, 65_535))]
        assert [pixels(strip) for strip in strips] == [65_535] * 2
        for size in ((65_536, 1), (1, 65_536)):
            strip = encoded(Image.new("RGB", size), kind)
            assert pixels(strip) == 2**62
            with pytest.raises(tf.errors.InvalidArgumentError):
                images.decode(strip)


def test_what_has_no_size_is_not_decoded():
    png = bombs.png(20, 10)
    assert pixels(png) == 200 and images.decode(png).shape == (10, 20, 3)
    text = struct.pack(">I", 1) + b"teXta" + bytes(4)
    endless = png[:16] + b"\xff" * 8 + png[24:]
    for content in (
        endless,
        png[:8] + text + png[8:],
        encoded(Image.new("RGB", (9, 9)), "WEBP"),
        b"",
        b"x",
    ):
        assert pixels(content) == 2**62
        with pytest.raises(tf.errors.InvalidArgumentError):
            images.decode(content)


def test_the_first_frame_alone_is_left_of_a_gif():
    pictures = [Image.new("RGB", (40, 20), colour) for colour in ("red", "green", "blue")]
    options = {"save_all": True, "append_images": pictures[1:], "loop": 0, "comment": b"x" * 600}
    animated = encoded(pictures[0], "GIF", **options)
    cut = first_frame(animated).numpy()
    found = Image.open(io.BytesIO(cut))
    assert found.n_frames == 1 and len(cut) < len(animated) / 2
    np.testing.assert_array_equal(np.asarray(found.convert("RGB")), np.asarray(pictures[0]))
    np.testing.assert_array_equal(images.decode(animated), np.asarray(pictures[0]))
    assert first_frame(b"no GIF") == b"no GIF"
    for length in range(6, len(cut) - 1):
        assert first_frame(cut[:length]) == b""


def test_a_frame_at_some_place_of_the_screen_is_the_image():
    gif = encoded(Image.new("RGB", (40, 20), "red"), "GIF")
    start = gif.index(b",\0\0\0\0")
    moved = gif[:start] + b"," + struct.pack("<2H", 30, 5) + gif[start + 5 :]
    np.testing.assert_array_equal(images.decode(moved), images.decode(gif))


def sub_blocks(data, size):
    starts = range(0, len(data), size)
    return b"".join(bytes([len(data[i : i + size])]) + data[i : i + size] for i in starts) + b"\0"


def test_the_sub_blocks_of_a_gif_are_not_followed_for_ever():
    gif = encoded(Image.new("RGB", (40, 20), "red"), "GIF")
    start = gif.index(b",\0\0\0\0")
    frame = gif[: start + 11] + b"\x01x" * 100_000 + b"\0;"
    whole = gif[: start + 11] + sub_blocks(bytes(129_000), 1) + b";"
    extension = b"!\xfe" + sub_blocks(bytes(1900), 1)
    extensions = gif[:start] + extension * 60 + gif[start:]
    few = gif[:start] + (b"!\xfe" + b"\x01x" * 9 + b"\0") * 50 + gif[start:]
    for content in (frame, whole, extensions, few):
        before = time.process_time()
        assert first_frame(content) == b""
        assert time.process_time() - before < 0.5
        with pytest.raises(tf.errors.InvalidArgumentError):
            images.decode(content)


@pytest.mark.parametrize("side", [1, 3, 17, 300, 900])
@pytest.mark.parametrize("colours", [2, 16, 256])
@pytest.mark.parametrize("options", [{}, {"optimize": True}, {"interlace": 1}, {"save_all": True}])
def test_gifs_of_ordinary_encoders_are_whole(side, colours, options):
    noise = np.random.default_rng(side).integers(0, 256, (side, side, 3), np.uint8)
    picture = Image.fromarray(noise).quantize(colours)
    if "save_all" in options:
        options = {**options, "append_images": [picture.rotate(90)] * 2, "duration": 50}
    content = encoded(picture, "GIF", **options)
    expected = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    np.testing.assert_array_equal(images.decode(content), expected)


@pytest.mark.parametrize("size", [254, 100, 64])
def test_sub_blocks_need_not_be_full(size):
    """Nor need they be sub-blocks: XMP is text, whose letters are read as sizes up to its end."""
    noise = np.random.default_rng(0).integers(0, 256, (100, 100), np.uint8)
    gif = encoded(Image.fromarray(noise), "GIF")
    start = gif.index(b",\0\0\0\0")
    frame, data = gif[start : start + 11], b""
    place = start + 11
    while gif[place]:
        data, place = data + gif[place + 1 : place + 1 + gif[place]], place + 1 + gif[place]
    xmp = b"<?xpacket?>" + (b" " * 99 + b"\n") * 20 + b"\x01" + bytes(range(255, -1, -1)) + b"\0"
    extension = b"!\xff\x0bXMP DataXMP" + xmp
    content = gif[:start] + extension + frame + sub_blocks(data, size) + b";"
    np.testing.assert_array_equal(images.decode(content), images.decode(gif))

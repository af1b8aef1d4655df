import io
import os
import struct

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from PIL import Image, ImageOps

from mrnn_tf import photos
from mrnn_tf.errors import UserError
from mrnn_tf.vision import images

ORIENTATION = 0x0112


def save(path, orientation=None, kind="JPEG"):
    """A blue picture whose top left corner, as it is seen when turned by 90 degrees, is red."""
    image = Image.new("RGB", (40, 24), "blue")
    image.paste("red", (0, 16, 8, 24))
    exif = Image.Exif()
    if orientation is not None:
        exif[ORIENTATION] = orientation
    image.save(path, kind, exif=exif)
    return str(path)


def opened(content):
    return Image.open(io.BytesIO(content))


@pytest.mark.parametrize("kind", photos.FORMATS)
@pytest.mark.parametrize("orientation", [None, 6])
def test_what_the_model_decodes_is_sent_as_it_is(tmp_path, kind, orientation):
    path = save(tmp_path / "photo", orientation, kind)
    content = (tmp_path / "photo").read_bytes()
    assert photos.load(path) == photos.load(content) == content
    assert photos.load(path, max_bytes=len(content)) == content


def test_a_jpeg_with_several_pictures_is_sent_as_it_is(tmp_path):
    path, exif = tmp_path / "photo.jpg", Image.Exif()
    exif[ORIENTATION] = 6
    first, second = Image.new("RGB", (40, 24), "blue"), Image.new("RGB", (20, 12), "red")
    first.save(path, "MPO", save_all=True, append_images=[second], exif=exif)
    content = path.read_bytes()
    assert opened(content).format == "MPO"
    assert photos.load(path) == content
    np.testing.assert_allclose(images.decode(content), np.full((40, 24, 3), [0, 0, 255]), atol=3)


def bmp(mode):
    content = io.BytesIO()
    image = Image.new("RGB", (40, 24), "white")
    image.paste("red" if mode == "P" else "black", (0, 0, 20, 24))
    image.convert(mode, palette=Image.Palette.ADAPTIVE).save(content, "BMP")
    return content.getvalue()


def bitmap(info, pixels):
    """A BMP of 40 x 24 equal pixels with some information header, whose size comes before it."""
    head = struct.pack("<I", len(info) + 4) + info
    return b"BM" + struct.pack("<IiI", 0, 0, 14 + len(head)) + head + pixels * 40 * 24


HIGH_COLOUR = bitmap(struct.pack("<iiHHIIiiII", 40, 24, 1, 16, 0, 0, 0, 0, 0, 0), b"\x00\x7c")
OS2 = bitmap(struct.pack("<HHHH", 40, 24, 1, 24), b"\0\0\xff")


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_a_bmp_that_the_model_decodes_is_sent_as_it_is(mode):
    assert photos.load(bmp(mode)) == bmp(mode)


@pytest.mark.parametrize("content", [bmp("P"), bmp("1"), HIGH_COLOUR, OS2])
def test_another_bmp_becomes_a_jpeg(content):
    decoded = images.decode(photos.load(content)).numpy().astype(int)
    expected = np.asarray(opened(content).convert("RGB"), int)
    difference = np.abs(decoded - expected)
    assert difference.mean() < 4 and difference.max() < 60  # at the edge of two colours


def test_webp_becomes_an_upright_jpeg(tmp_path):
    sent = opened(photos.load(save(tmp_path / "photo", 6, "WEBP")))
    assert sent.format == "JPEG" and sent.size == (24, 40)
    assert sent.getexif().get(ORIENTATION, 1) == 1
    red, _, blue = sent.getpixel((0, 0))
    assert red > 200 and blue < 60


def test_heic_becomes_a_jpeg(tmp_path):
    pytest.importorskip("pillow_heif")
    sent = opened(photos.load(save(tmp_path / "photo", kind="HEIF")))
    assert sent.format == "JPEG" and sent.size == (40, 24) and sent.getpixel((0, 23))[0] > 200


def test_a_pil_image_is_sent_upright(tmp_path):
    with Image.open(save(tmp_path / "photo", 6)) as image:
        sent = opened(photos.load(image))
    assert sent.format == "PNG" and sent.size == (24, 40) and sent.getpixel((0, 0))[0] > 200


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_large_photo_is_made_to_fit(tmp_path, kind):
    path = tmp_path / "photo"
    noise = np.random.default_rng(0).integers(0, 256, (600, 900, 3), np.uint8)
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    Image.fromarray(noise).save(path, kind, exif=exif)
    for most in (300_000, 20_000):
        content = photos.load(path, max_bytes=most)
        sent = opened(content)
        assert most / 4 < len(content) <= most
        assert sent.format == "JPEG" and sent.height / sent.width == pytest.approx(1.5, rel=0.02)
        assert sent.getexif().get(ORIENTATION, 1) == 1
    assert len(photos.load(noise, max_bytes=20_000)) <= 20_000
    with pytest.raises(ValueError, match="photo: no image of 100 bytes can be made of it"):
        photos.load(path, max_bytes=100)


def test_features_of_a_file(tmp_path):
    np.save(tmp_path / "f.npy", np.array([1.0, 2.5]))
    features = photos.load(str(tmp_path / "f.npy"))
    assert features.dtype == np.float32
    assert features.tolist() == [1.0, 2.5]


def test_what_is_no_image_is_named(tmp_path):
    photo = tmp_path / "photo.jpg"
    save(photo)
    content = photo.read_bytes()
    tiff = tmp_path / "t.jpg"
    Image.new("RGB", (4, 4)).save(tiff, "TIFF")
    for path, change, sentence in [
        (photo, b"hello", "photo.jpg: no image"),
        (photo, b"", "photo.jpg: no image"),
        (photo, content[: len(content) // 2], "photo.jpg: a damaged image"),
        (tiff, tiff.read_bytes(), "t.jpg: no image; JPEG, PNG, GIF, BMP, WebP and, with the pac"),
    ]:
        path.write_bytes(change)
        with pytest.raises(ValueError, match=sentence):
            photos.load(str(path))


def encoded(kind):
    noise = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    exif = Image.Exif()
    exif[ORIENTATION], exif[0x010F], exif[0x011A] = 6, "maker", 72.0
    content = io.BytesIO()
    Image.fromarray(noise).save(content, kind, exif=exif)
    return content.getvalue()


WHOLE = {kind: encoded(kind) for kind in photos._READABLE}


@pytest.mark.filterwarnings("ignore")  # of Pillow, about what is damaged
@hypothesis.settings(max_examples=600, deadline=None)
@hypothesis.given(
    st.sampled_from(sorted(WHOLE)),
    st.dictionaries(
        st.one_of(st.integers(0, 60), st.integers(0, 3000)), st.integers(0, 255), max_size=8
    ),
    st.one_of(st.none(), st.integers(0, 3000)),
    st.sampled_from([None, 1000]),
)
def test_a_damaged_image_is_a_mistake_of_the_user(kind, changes, length, max_bytes):
    content = bytearray(WHOLE[kind])
    for place, value in changes.items():
        content[place % len(content)] = value
    try:
        sent = photos.load(bytes(content[:length]), max_bytes)
    except UserError as error:
        assert str(error).startswith("the image: ")
    else:
        assert sent


def changed(content, place, value):
    return content[:place] + value + content[place + len(value) :]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (changed(WHOLE["PNG"], 11, b"\0"), ValueError),
        (changed(WHOLE["JPEG"], 41, b"\0"), struct.error),  # in the EXIF segment
        (changed(WHOLE["JPEG"], 41, b"\x1f"), TypeError),
        (changed(WHOLE["JPEG"], 65, b"\x0d"), AttributeError),
    ],
)
def test_every_error_of_pillow_is_one_sentence(content, error):
    with pytest.raises(error):
        ImageOps.exif_transpose(opened(content))
    with pytest.raises(UserError, match="the image: a damaged image"):
        photos.load(content, max_bytes=1000)


@pytest.mark.parametrize(
    "values",
    [np.zeros([1, 3]), np.array(["a"]), np.array([np.nan]), np.array([1e300]), np.zeros([])],
)
def test_what_are_no_features_is_named(tmp_path, values):
    np.save(tmp_path / "f.npy", values)
    with pytest.raises(ValueError, match=r"f\.npy: features are finite numbers"):
        photos.load(str(tmp_path / "f.npy"))


def npy(shape):
    """The header of an array in a file."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header


def test_what_is_no_npy_file_is_named(tmp_path):
    zipped = io.BytesIO()
    np.savez(zipped, np.ones(3))
    large, larger = npy(f"({10**12},)"), npy(f"({10**24},)")
    for content in (b"", b"hello", zipped.getvalue(), npy("(((("), large, larger):
        (tmp_path / "f.npy").write_bytes(content)
        with pytest.raises(ValueError, match=r"f\.npy is no readable NumPy file"):
            photos.load(str(tmp_path / "f.npy"))


def test_a_pipe_a_device_and_a_folder_are_no_files(tmp_path):
    for name in ("photo.jpg", "f.npy"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(UserError, match=f"{name}: no file, but a pipe"):
            photos.load(tmp_path / name)
    with pytest.raises(UserError, match="/dev/zero: no file"):
        photos.load("/dev/zero")
    with pytest.raises(IsADirectoryError):
        photos.load(tmp_path)


def test_a_file_has_an_end(tmp_path):
    with open(tmp_path / "sparse.jpg", "wb") as file:
        file.truncate(photos.MAX_FILE_BYTES + 1)
    with pytest.raises(UserError, match=r"sparse\.jpg: a file of 1,073,741,825 bytes"):
        photos.load(tmp_path / "sparse.jpg")


def test_no_file_is_an_oserror(tmp_path):
    for name in ("photo.jpg", "f.npy"):
        with pytest.raises(FileNotFoundError):
            photos.load(str(tmp_path / name))

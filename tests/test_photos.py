import io

import numpy as np
import pytest
from PIL import Image

from mrnn_tf import photos

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


@pytest.mark.parametrize(
    "values", [np.zeros([1, 3]), np.array(["a"]), np.array([np.nan]), np.array([{}], object)]
)
def test_what_are_no_features_is_named(tmp_path, values):
    np.save(tmp_path / "f.npy", values, allow_pickle=True)
    with pytest.raises(ValueError, match=r"f\.npy: "):
        photos.load(str(tmp_path / "f.npy"))


def test_what_is_no_npy_file_is_named(tmp_path):
    for content in (b"", b"hello"):
        (tmp_path / "f.npy").write_bytes(content)
        with pytest.raises(ValueError, match=r"f\.npy: no array"):
            photos.load(str(tmp_path / "f.npy"))


def test_no_file_is_an_oserror(tmp_path):
    for name in ("photo.jpg", "f.npy"):
        with pytest.raises(FileNotFoundError):
            photos.load(str(tmp_path / name))

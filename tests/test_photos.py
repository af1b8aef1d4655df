import io

import numpy as np
import pytest
from PIL import Image

from mrnn_tf import photos

WIDTH, HEIGHT = 40, 24
ORIENTATION = 0x0112
# Where the red corner, stored top left, is seen under each EXIF orientation.
RED = {
    1: (0, 0), 2: (WIDTH - 1, 0), 3: (WIDTH - 1, HEIGHT - 1), 4: (0, HEIGHT - 1),
    5: (0, 0), 6: (HEIGHT - 1, 0), 7: (HEIGHT - 1, WIDTH - 1), 8: (0, WIDTH - 1),
}  # fmt: skip


def save(path, orientation=None, kind="JPEG"):
    image = Image.new("RGB", (WIDTH, HEIGHT), "blue")
    image.paste("red", (0, 0, 8, 8))
    exif = Image.Exif()
    if orientation is not None:
        exif[ORIENTATION] = orientation
    image.save(path, kind, exif=exif)
    return str(path)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", RED)
def test_a_photo_is_sent_upright(tmp_path, orientation, kind):
    path = save(tmp_path / "photo", orientation, kind)
    sent = Image.open(io.BytesIO(photos.load(path)))
    assert sent.format == kind
    assert sent.size == ((WIDTH, HEIGHT) if orientation < 5 else (HEIGHT, WIDTH))
    assert sent.getexif().get(ORIENTATION, 1) == 1
    red, _, blue = sent.getpixel(RED[orientation])
    assert red > 200 and blue < 60
    assert sum(sent.getpixel((x, y))[0] > 200 for x in (0, sent.width - 1)
               for y in (0, sent.height - 1)) == 1  # fmt: skip


@pytest.mark.parametrize("orientation", [None, 1])
def test_an_upright_photo_is_sent_as_it_is(tmp_path, orientation):
    path = save(tmp_path / "photo.jpg", orientation)
    assert photos.load(path) == (tmp_path / "photo.jpg").read_bytes()


def test_features_of_a_file(tmp_path):
    np.save(tmp_path / "f.npy", np.array([1.0, 2.5]))
    features = photos.load(str(tmp_path / "f.npy"))
    assert features.dtype == np.float32
    assert features.tolist() == [1.0, 2.5]


def test_what_is_no_image_is_named(tmp_path):
    photo = tmp_path / "photo.jpg"
    save(photo)
    content = photo.read_bytes()
    webp = tmp_path / "w.jpg"
    Image.new("RGB", (4, 4)).save(webp, "WEBP")
    for path, change, sentence in [
        (photo, b"hello", "photo.jpg: no image"),
        (photo, b"", "photo.jpg: no image"),
        (photo, content[: len(content) // 2], "photo.jpg: a damaged image"),
        (webp, webp.read_bytes(), "w.jpg: no image; JPEG, PNG, GIF and BMP"),
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

import io

import numpy as np
import pytest
import skimage.data
import tensorflow as tf
from PIL import Image

from mrnn_tf.vision import images


def picture(mode="RGB"):
    ramp = np.add.outer(np.arange(60), np.arange(80))[..., np.newaxis] * [1.0, 0.5, 1.7]
    return Image.fromarray(ramp.astype(np.uint8)).convert(mode)


def encoded(image, form, **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("mode", "form", "tolerance"),
    [
        ("RGB", "JPEG", 4),
        ("L", "JPEG", 2),
        ("CMYK", "JPEG", 2),
        ("L", "PNG", 0),
        ("LA", "PNG", 0),
        ("RGBA", "PNG", 0),
        ("P", "PNG", 0),
        ("1", "PNG", 0),
        ("P", "GIF", 0),
        ("RGB", "BMP", 0),
        ("RGBA", "BMP", 0),
    ],
)
def test_decode_gives_rgb_as_pillow_does(mode, form, tolerance):
    content = encoded(picture(mode), form)
    decoded = images.decode(content)
    expected = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    assert decoded.dtype == tf.uint8
    np.testing.assert_allclose(decoded.numpy().astype(int), expected, atol=tolerance)


def test_decode_takes_the_high_byte_of_16_bits():
    grey = np.arange(60 * 80, dtype=np.uint16).reshape(60, 80) * 13
    decoded = images.decode(encoded(Image.fromarray(grey), "PNG"))
    np.testing.assert_array_equal(decoded, np.repeat(grey[..., np.newaxis] >> 8, 3, axis=-1))


def test_decode_takes_the_first_frame_of_an_animation():
    frames = [picture("P"), picture("P").rotate(180)]
    still = encoded(frames[0], "GIF")
    animated = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(images.decode(animated), images.decode(still))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "BMP"])
def test_decode_refuses_truncated_bytes(form):
    content = encoded(picture("P" if form == "GIF" else "RGB"), form)
    for length in (0, 1, len(content) // 3, len(content) - 40, len(content) - 3):
        with pytest.raises(tf.errors.InvalidArgumentError):
            images.decode(content[:length])


def test_decode_refuses_what_is_no_image():
    with pytest.raises(tf.errors.InvalidArgumentError):
        images.decode(b"a dog runs on the beach")


@pytest.mark.parametrize("size", [(37, 21), (120, 150)])
def test_resize_is_pillows_bicubic(size):
    image = skimage.data.chelsea()[:90, :70]
    expected = Image.fromarray(image).resize(size, Image.Resampling.BICUBIC)
    resized = images.resize(image, size[1], size[0]).numpy()
    assert resized.min() >= 0 and resized.max() <= 255
    np.testing.assert_allclose(resized, np.asarray(expected, float), atol=1.5)


@pytest.mark.parametrize("shape", [(3, 2000), (2000, 3), (1, 40)])
def test_a_strip_is_resized_as_pillow_does(shape):
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    expected = Image.fromarray(image).resize((50, 40), Image.Resampling.BICUBIC)
    resized = images.resize(image, 40, 50).numpy()
    np.testing.assert_allclose(resized, np.asarray(expected, float), atol=1.5)
    in_graph = tf.function(images.resize)(tf.constant(image), 40, 50)
    assert in_graph.shape == (40, 50, 3)
    np.testing.assert_allclose(in_graph, resized, atol=1e-3)


def test_resizing_by_rows_is_tensorflows_own():
    image = np.random.default_rng(0).integers(0, 256, (41, 67, 3), dtype=np.uint8)
    for sides in ((20, 90), (80, 30), (41, 67)):
        expected = tf.image.resize(image, sides, method="bicubic", antialias=True)
        expected = tf.clip_by_value(tf.cast(expected, tf.float32), 0.0, 255.0)
        np.testing.assert_array_equal(images.resize(image, *sides), expected)

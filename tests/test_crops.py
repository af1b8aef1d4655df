import numpy as np
import pytest

from mrnn_tf.vision import crops


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_ten_crop_takes_corners_centre_and_mirrored():
    image = noise(256, 301, 3)
    windows = crops.ten_crop(image).numpy()
    expected = [
        image[y : y + 224, x : x + 224] for y, x in [(0, 0), (0, 77), (32, 0), (32, 77), (16, 38)]
    ]
    expected += [window[:, ::-1] for window in expected]
    np.testing.assert_allclose(windows, expected, atol=1e-3)


def test_ten_crop_resizes_the_short_side_and_keeps_the_aspect():
    ramp = np.repeat(np.arange(200, dtype=np.float32)[:, np.newaxis, np.newaxis], 3, axis=2)
    image = np.repeat(ramp, 50, axis=1)  # 200 x 50 becomes 64 x 16
    windows = crops.ten_crop(image, short_side=16, size=8).numpy()
    assert windows.shape == (10, 8, 8, 3)
    rows = (np.arange(64) + 0.5) * 200 / 64 - 0.5
    for index, top in ((0, 0), (2, 56), (4, 28)):
        np.testing.assert_allclose(windows[index][1:-1, 0, 0], rows[top + 1 : top + 7], atol=0.3)


def test_ten_crop_bounds_a_strip():
    assert crops.ten_crop(noise(1, 20_000, 3), short_side=16, size=8).shape == (10, 8, 8, 3)


def test_ten_crop_refuses_windows_larger_than_the_image():
    with pytest.raises(ValueError, match="`short_side` must be at least `size`"):
        crops.ten_crop(noise(8, 8, 3), short_side=4, size=8)


def test_short_side_keeps_the_papers_proportion():
    image = noise(342, 350, 3)
    windows = crops.windows(image, 10, 299)
    np.testing.assert_allclose(windows[3], image[-299:, -299:], atol=1e-3)

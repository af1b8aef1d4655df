import keras
import numpy as np
import pytest
import skimage.data
import tensorflow as tf
from numpy.lib.stride_tricks import sliding_window_view

from mrnn_tf.vision import alexnet, encoders, images, parameters

SMALL_KERNELS = {
    "conv1": (11, 11, 3, 6),
    "conv2": (5, 5, 3, 8),
    "conv3": (3, 3, 8, 4),
    "conv4": (3, 3, 2, 4),
    "conv5": (3, 3, 2, 6),
    "fc6": (6 * 6 * 6, 10),
    "fc7": (10, 5),
}


def random_layers(kernels):
    rng = np.random.default_rng(0)

    def normal(shape):
        return rng.standard_normal(shape, np.float32) * np.sqrt(2 / np.prod(shape[:-1]))

    layers = {name: [normal(shape), normal(shape[-1:])] for name, shape in kernels.items()}
    return layers | {"fc8": [normal((5, 3)), normal((3,))]}


def numpy_convolution(x, kernel, stride, pad):
    """Caffe's convolution [H, W, C]."""
    x = np.pad(x, [(pad, pad), (pad, pad), (0, 0)])
    windows = sliding_window_view(x, kernel.shape[:2], axis=(0, 1))[::stride, ::stride]
    return np.tensordot(windows, kernel, axes=([3, 4, 2], [0, 1, 2]))


def numpy_alexnet(x, layers):
    def convolved(x, name, groups=1, stride=1, pad=0):
        kernel, bias = layers[name]
        pairs = zip(np.split(x, groups, -1), np.split(kernel, groups, -1), strict=True)
        y = np.concatenate([numpy_convolution(part, k, stride, pad) for part, k in pairs], -1)
        return np.maximum(y + bias, 0)

    def normalised(x):
        padded = np.pad(x**2, [(0, 0), (0, 0), (2, 2)])
        energy = sum(padded[..., i : i + x.shape[-1]] for i in range(5))
        return x / (1 + 2e-5 * energy) ** 0.75

    def pooled(x):
        windows = sliding_window_view(x, (3, 3), axis=(0, 1))
        return windows[::2, ::2].max(axis=(-2, -1))

    x = pooled(normalised(convolved(x, "conv1", stride=4)))
    x = pooled(normalised(convolved(x, "conv2", groups=2, pad=2)))
    x = convolved(convolved(x, "conv3", pad=1), "conv4", groups=2, pad=1)
    x = pooled(convolved(x, "conv5", groups=2, pad=1)).reshape(-1)
    for kernel, bias in (layers["fc6"], layers["fc7"]):
        x = np.maximum(x @ kernel + bias, 0)
    return x


@pytest.fixture
def small_kernels(monkeypatch):
    monkeypatch.setattr(alexnet, "KERNELS", SMALL_KERNELS)


@pytest.fixture
def small_alexnet(small_kernels, tmp_path):
    np.save(tmp_path / "small.npy", random_layers(SMALL_KERNELS))
    return encoders.create("alexnet", str(tmp_path / "small.npy"))


def test_alexnet_equals_its_float64_reference(small_alexnet):
    prepared = small_alexnet.prepare(skimage.data.chelsea())
    layers = random_layers(SMALL_KERNELS)
    expected = numpy_alexnet(prepared[0].numpy().astype(np.float64), layers)
    assert np.count_nonzero(expected) > 1
    features = small_alexnet.encode(prepared[tf.newaxis])
    np.testing.assert_allclose(features[0], expected, rtol=1e-4, atol=1e-4)


def test_alexnet_survives_saving(
    small_alexnet, photographs, eager_features, served_features, tmp_path
):
    expected = eager_features(small_alexnet)
    served = served_features(small_alexnet)
    np.testing.assert_allclose(served, expected, rtol=1e-4, atol=1e-4)

    small_alexnet.model.save(tmp_path / "small.keras")
    restored = keras.models.load_model(tmp_path / "small.keras")
    assert parameters.sha256(restored) == small_alexnet.weights_sha256
    prepared = small_alexnet.prepare(images.decode(photographs[0]))
    np.testing.assert_allclose(restored(prepared), expected[:1], rtol=1e-4, atol=1e-4)


def test_alexnet_needs_its_weights(small_kernels, tmp_path):
    with pytest.raises(ValueError, match=r"comes without weights: give bvlc_alexnet\.npy"):
        encoders.create("alexnet")
    np.save(tmp_path / "other.npy", random_layers({"conv1": (3, 3, 3, 4)}))
    with pytest.raises(ValueError, match=r"other\.npy does not hold AlexNet: conv1 must be"):
        encoders.create("alexnet", str(tmp_path / "other.npy"))
    np.save(tmp_path / "array.npy", np.zeros(3))
    with pytest.raises(ValueError, match=r"array\.npy is no `\.npy` dictionary"):
        encoders.create("alexnet", str(tmp_path / "array.npy"))


@pytest.mark.slow
def test_alexnet_loads_a_file_of_the_published_shapes(tmp_path):
    layers = random_layers(alexnet.KERNELS)
    np.save(tmp_path / "bvlc_alexnet.npy", layers)
    full = encoders.create("alexnet", str(tmp_path / "bvlc_alexnet.npy"))
    prepared = full.prepare(skimage.data.chelsea())
    expected = numpy_alexnet(prepared[0].numpy().astype(np.float64), layers)
    np.testing.assert_allclose(full.encode(prepared[tf.newaxis])[0], expected, rtol=1e-3, atol=1e-2)
    assert full.identity.endswith(":warp227-bvlc:crops=1:4096")

import os

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


def save(path, layers):
    kinds = ("weights", "biases")
    pairs = ((name, zip(kinds, layer, strict=True)) for name, layer in layers.items())
    np.savez(path, **{f"{name}/{kind}": array for name, pair in pairs for kind, array in pair})
    return str(path)


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
    path = save(tmp_path / "small.npz", random_layers(SMALL_KERNELS))
    return encoders.create("alexnet", path)


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


def test_weights_of_keras_load_too(small_alexnet, tmp_path):
    small_alexnet.model.save_weights(tmp_path / "small.weights.h5")
    loaded = encoders.create("alexnet", str(tmp_path / "small.weights.h5"))
    assert loaded.identity == small_alexnet.identity


def test_alexnet_needs_its_weights(small_kernels, tmp_path):
    with pytest.raises(ValueError, match=r"comes without weights: give `encoder_weights`.*npz"):
        encoders.create("alexnet")
    other = save(tmp_path / "other.npz", random_layers({"conv1": (3, 3, 3, 4)}))
    with pytest.raises(ValueError, match=r"other\.npz does not hold weights of alexnet: .*conv1"):
        encoders.create("alexnet", other)
    half = save(tmp_path / "half.npz", random_layers({"conv1": SMALL_KERNELS["conv1"]}))
    with pytest.raises(ValueError, match=r"half\.npz does not hold .*: .*conv2/weights"):
        encoders.create("alexnet", half)
    for name, content in {"empty": b"", "junk": b"no arrays"}.items():
        path = tmp_path / f"{name}.npz"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name}\.npz does not hold weights of alexnet: "):
            encoders.create("alexnet", str(path))
    with open(tmp_path / "array.npz", "wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ValueError, match=r"array\.npz does not hold weights of alexnet: "):
        encoders.create("alexnet", str(tmp_path / "array.npz"))


def test_objects_in_a_weights_file_are_refused(small_kernels, tmp_path):
    class Malicious:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    layers = random_layers(SMALL_KERNELS) | {"conv1": [np.array([Malicious()]), np.zeros(6)]}
    refused = (
        r"evil\.npz does not hold weights of alexnet: it is no .* Object arrays cannot.*[^.]\.$"
    )
    with pytest.raises(ValueError, match=refused):
        encoders.create("alexnet", save(tmp_path / "evil.npz", layers))
    np.save(tmp_path / "evil.npy", layers)
    with pytest.raises(ValueError, match=r"evil\.npy does not hold weights of alexnet: "):
        encoders.create("alexnet", str(tmp_path / "evil.npy"))
    assert not (tmp_path / "harm").exists()


@pytest.mark.slow
def test_alexnet_loads_a_file_of_the_published_shapes(tmp_path):
    layers = random_layers(alexnet.KERNELS)
    full = encoders.create("alexnet", save(tmp_path / "bvlc_alexnet.npz", layers))
    prepared = full.prepare(skimage.data.chelsea())
    expected = numpy_alexnet(prepared[0].numpy().astype(np.float64), layers)
    np.testing.assert_allclose(full.encode(prepared[tf.newaxis])[0], expected, rtol=1e-3, atol=1e-2)
    assert full.identity.endswith(":warp227-bvlc:crops=1:4096")

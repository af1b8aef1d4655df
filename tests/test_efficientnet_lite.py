import pickle

import keras
import numpy as np
import pytest
import skimage.data
import tensorflow as tf

from mrnn_tf.vision import efficientnet_lite, encoders, torch_file

LITE0 = "efficientnet_lite0"


@pytest.fixture(scope="module", params=efficientnet_lite.SCALES)
def encoder(request):
    return encoders.create(request.param)


def test_it_knows_a_cat_and_a_cup_of_coffee(encoder):
    features = efficientnet_lite.build(encoder.name)
    logits = keras.layers.Dense(1000, name="fc")(features.output)
    classifier = keras.Model(features.input, logits)
    efficientnet_lite.assign(classifier, efficientnet_lite.packaged_weights(encoder.name))
    photographs = {"chelsea": {281, 282, 283, 284, 285}, "coffee": {504, 967, 968}}
    for name, classes in photographs.items():
        prepared = encoder.prepare(getattr(skimage.data, name)())
        best = np.argsort(classifier(prepared, training=False)[0])[::-1]
        assert best[0] in classes
        # The third guess of Lite2 for the coffee is a clear soup.
        assert set(best[: 2 if encoder.name == "efficientnet_lite2" else 3]) <= classes


def numpy_convolution(x, kernel, stride=1, depthwise=False):
    """TensorFlow's padded convolution [H, W, C] in float64, tap by tap."""
    size = kernel.shape[0]
    pads = [max((-(-n // stride) - 1) * stride + size - n, 0) for n in x.shape[:2]]
    x = np.pad(x, [(pad // 2, pad - pad // 2) for pad in pads] + [(0, 0)])
    height, width = ((n - size) // stride + 1 for n in x.shape[:2])
    total = 0.0
    for i in range(size):
        for j in range(size):
            tap = x[i : i + stride * height : stride, j : j + stride * width : stride]
            total += tap * kernel[i, j] if depthwise else np.tensordot(tap, kernel[i, j], axes=1)
    return total


def numpy_lite(x, tensors, blocks, halving):
    """Features in float64; the blocks `halving` have stride 2."""

    def normalised(x, name):
        scale = tensors[f"{name}.weight"] / np.sqrt(tensors[f"{name}.running_var"] + 1e-3)
        return (x - tensors[f"{name}.running_mean"]) * scale + tensors[f"{name}.bias"]

    def convolved(x, name, stride=1):
        return numpy_convolution(x, tensors[f"{name}.weight"].transpose(2, 3, 1, 0), stride)

    x = np.clip(normalised(convolved(x, "_conv_stem", 2), "_bn0"), 0, 6)
    for index in range(blocks):
        name, shortcut = f"_blocks.{index}", x
        if index > 0:
            x = np.clip(normalised(convolved(x, f"{name}._expand_conv"), f"{name}._bn0"), 0, 6)
        kernel = tensors[f"{name}._depthwise_conv.weight"][:, 0].transpose(1, 2, 0)
        x = numpy_convolution(x, kernel, 1 + (index in halving), depthwise=True)
        x = np.clip(normalised(x, f"{name}._bn1"), 0, 6)
        x = normalised(convolved(x, f"{name}._project_conv"), f"{name}._bn2")
        x = x + shortcut if x.shape == shortcut.shape else x
    return np.clip(normalised(convolved(x, "_conv_head"), "_bn1"), 0, 6).mean(axis=(0, 1))


def test_it_equals_its_float64_reference(encoder):
    prepared = encoder.prepare(skimage.data.coffee())
    stored = torch_file.read_torch(efficientnet_lite.packaged_weights(encoder.name))
    tensors = {name: tensor.astype(np.float64) for name, tensor in stored.items()}
    blocks = (16, {1, 3, 5, 11}) if encoder.name == LITE0 else (21, {1, 4, 7, 15})
    expected = numpy_lite(prepared[0].numpy().astype(np.float64), tensors, *blocks)
    np.testing.assert_allclose(encoder.encode(prepared[tf.newaxis])[0], expected, atol=5e-5)


def test_lite0_refuses_tensors_of_another_network(tmp_path):
    path = tmp_path / "empty.pth"
    parts = [0x1950A86A20F9469CFC6C, 1001, {}, {}, []]
    path.write_bytes(b"".join(pickle.dumps(part, protocol=2) for part in parts))
    with pytest.raises(ValueError, match=r"empty\.pth does not hold efficientnet_lite0: conv_stem"):
        encoders.create(LITE0, str(path))


def test_lite0_refuses_a_truncated_weights_file(tmp_path):
    path = tmp_path / "cut.pth"
    with open(efficientnet_lite.packaged_weights(LITE0), "rb") as file:
        path.write_bytes(file.read()[:-100])
    with pytest.raises(ValueError, match=r"cut\.pth is no state dictionary"):
        encoders.create(LITE0, str(path))

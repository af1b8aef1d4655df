import dataclasses
import io
import os
import pickle

import keras
import numpy as np
import pytest
import skimage.data
import tensorflow as tf
from PIL import Image

from mrnn_tf.vision import (
    alexnet,
    applications,
    crops,
    efficientnet_lite,
    encoders,
    grouped_conv,
    images,
    parameters,
    pickles,
)


@pytest.fixture(scope="module")
def encoder():
    return encoders.create("efficientnet_lite0")


@pytest.fixture(scope="module")
def mobilenet():
    return encoders.create("mobilenet_v2", "random")


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def picture(mode="RGB"):
    ramp = np.add.outer(np.arange(60), np.arange(80))[..., np.newaxis] * [1.0, 0.5, 1.7]
    return Image.fromarray(ramp.astype(np.uint8)).convert(mode)


def encoded(image, form, **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


# Keras 3.15 and TensorFlow 2.20 write files through an `__array__` that NumPy 2 deprecates.
writes_keras_files = pytest.mark.filterwarnings("ignore:__array__ implementation")


def uses_xla(function, *inputs):
    graph = tf.function(function).get_concrete_function(*inputs).graph
    return "_XlaMustCompile" in str(graph.as_graph_def())


# Images


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


# Crops


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


# EfficientNet-Lite0


@pytest.fixture(scope="module")
def classifier():
    return efficientnet_lite.load_classifier()


@pytest.mark.parametrize(
    ("name", "classes"), [("chelsea", {281, 282, 283, 284, 285}), ("coffee", {504, 967, 968})]
)
def test_lite0_knows_a_cat_and_a_cup_of_coffee(encoder, classifier, name, classes):
    prepared = encoder.prepare(getattr(skimage.data, name)())
    best = np.argsort(classifier(prepared, training=False)[0])[::-1]
    assert best[0] in classes
    assert set(best[:3]) <= classes


def numpy_convolution(x, kernel, stride=1, same=True, depthwise=False):
    """TensorFlow's convolution [H, W, C] in float64, tap by tap."""
    size = kernel.shape[0]
    if same:
        pads = [max((-(-n // stride) - 1) * stride + size - n, 0) for n in x.shape[:2]]
        x = np.pad(x, [(pad // 2, pad - pad // 2) for pad in pads] + [(0, 0)])
    height, width = ((n - size) // stride + 1 for n in x.shape[:2])
    total = 0.0
    for i in range(size):
        for j in range(size):
            tap = x[i : i + stride * height : stride, j : j + stride * width : stride]
            total += tap[:height, :width] * kernel[i, j] if depthwise else tap @ kernel[i, j]
    return total


def numpy_lite0(x, tensors):
    def normalised(x, name):
        scale = tensors[f"{name}.weight"] / np.sqrt(tensors[f"{name}.running_var"] + 1e-3)
        return (x - tensors[f"{name}.running_mean"]) * scale + tensors[f"{name}.bias"]

    def convolved(x, name, stride=1):
        return numpy_convolution(x, tensors[f"{name}.weight"].transpose(2, 3, 1, 0), stride)

    x = np.clip(normalised(convolved(x, "_conv_stem", 2), "_bn0"), 0, 6)
    strides = {1: 2, 3: 2, 5: 2, 11: 2}
    for index in range(16):
        name, shortcut = f"_blocks.{index}", x
        if index > 0:
            x = np.clip(normalised(convolved(x, f"{name}._expand_conv"), f"{name}._bn0"), 0, 6)
        kernel = tensors[f"{name}._depthwise_conv.weight"][:, 0].transpose(1, 2, 0)
        x = numpy_convolution(x, kernel, strides.get(index, 1), depthwise=True)
        x = np.clip(normalised(x, f"{name}._bn1"), 0, 6)
        x = normalised(convolved(x, f"{name}._project_conv"), f"{name}._bn2")
        x = x + shortcut if x.shape == shortcut.shape else x
    return np.clip(normalised(convolved(x, "_conv_head"), "_bn1"), 0, 6).mean(axis=(0, 1))


def test_lite0_equals_its_float64_reference(encoder):
    prepared = encoder.prepare(skimage.data.coffee())
    stored = pickles.read_torch(efficientnet_lite.packaged_weights())
    tensors = {name: tensor.astype(np.float64) for name, tensor in stored.items()}
    expected = numpy_lite0(prepared[0].numpy().astype(np.float64), tensors)
    np.testing.assert_allclose(encoder.encode(prepared[tf.newaxis])[0], expected, atol=5e-5)


def test_lite0_refuses_tensors_of_another_network(tmp_path):
    path = tmp_path / "empty.pth"
    parts = [0x1950A86A20F9469CFC6C, 1001, {}, {}, []]
    path.write_bytes(b"".join(pickle.dumps(part, protocol=2) for part in parts))
    with pytest.raises(ValueError, match=r"empty\.pth does not hold EfficientNet-Lite0: conv_stem"):
        encoders.create("efficientnet_lite0", str(path))


def test_lite0_refuses_a_truncated_weights_file(tmp_path):
    path = tmp_path / "cut.pth"
    with open(efficientnet_lite.packaged_weights(), "rb") as file:
        path.write_bytes(file.read()[:-100])
    with pytest.raises(ValueError, match=r"cut\.pth is no state dictionary"):
        encoders.create("efficientnet_lite0", str(path))


# Encoders


def test_identity_is_of_the_weights_and_of_the_preprocessing(encoder):
    assert encoder.identity == "efficientnet_lite0:cedb27358b32:warp224-lite:crops=1:1280"
    assert encoder.describe() | {"weights_sha256": ""} == {
        "name": "efficientnet_lite0",
        "weights_sha256": "",
        "preprocessing": "warp224-lite",
        "crops": 1,
        "feature_size": 1280,
    }
    ten = encoders.create("efficientnet_lite0", crops=10)
    assert ten.identity == "efficientnet_lite0:cedb27358b32:windows224-lite:crops=10:1280"


def test_random_weights_are_reproducible(mobilenet):
    assert encoders.create("mobilenet_v2", "random").identity == mobilenet.identity
    features = mobilenet.encode(mobilenet.prepare(skimage.data.coffee())[tf.newaxis])
    assert 0.1 < np.std(features) < 100


def test_the_fingerprint_is_of_values_not_of_names():
    def model(name, value):
        dense = keras.layers.Dense(
            2, name=name, kernel_initializer=keras.initializers.Constant(value)
        )
        return keras.Sequential([keras.Input((3,)), dense])

    assert parameters.sha256(model("a", 1.0)) == parameters.sha256(model("b", 1.0))
    assert parameters.sha256(model("a", 1.0)) != parameters.sha256(model("a", 2.0))


def test_create_refuses_unknown_names_and_crops():
    with pytest.raises(ValueError, match=r"Unknown encoder 'vgg': .*vgg16, vgg19"):
        encoders.create("vgg")
    with pytest.raises(ValueError, match=r"`crops` must be one of \(1, 10\), received 5"):
        encoders.create("efficientnet_lite0", crops=5)


def test_ten_crops_are_averaged():
    inputs = keras.Input((7, 7, 3))
    model = keras.Model(inputs, keras.layers.GlobalMaxPooling2D()(inputs))
    network = encoders.Network(lambda _: model, lambda pixels: pixels / 255.0, 7, "unit")
    encoder = encoders.Encoder("brightest", network, model, crops=10)
    pictures = [noise(8, 9, 3), noise(30, 20, 3)]
    prepared = tf.stack([encoder.prepare(image) for image in pictures])
    expected = [
        crops.ten_crop(image, 8, 7).numpy().max(axis=(1, 2)).mean(axis=0) / 255
        for image in pictures
    ]
    np.testing.assert_allclose(encoder.encode(prepared), expected, rtol=1e-5)


def photographs():
    pictures = [skimage.data.chelsea()[:100], skimage.data.coffee()[:, :80]]
    return [encoded(Image.fromarray(image), "PNG") for image in pictures]


def eager_features(encoder):
    prepared = [encoder.prepare(images.decode(content)) for content in photographs()]
    return np.concatenate([encoder.encode(windows[tf.newaxis]) for windows in prepared])


def served_features(encoder, directory):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def encode_image(image_bytes):
        prepared = tf.map_fn(
            lambda content: encoder.prepare(images.decode(content)),
            image_bytes,
            fn_output_signature=tf.float32,
        )
        return {"features": encoder.encode(prepared)}

    tf.saved_model.save(encoder, directory, signatures=encode_image)
    served = tf.saved_model.load(directory).signatures["serving_default"]
    return served(image_bytes=tf.constant(photographs()))["features"]


def test_features_are_equal_eagerly_and_in_a_pipeline(encoder):
    dataset = tf.data.Dataset.from_tensor_slices(photographs())
    dataset = dataset.map(lambda content: encoder.prepare(images.decode(content))).batch(2)
    features = tf.function(encoder.encode)(dataset.get_single_element())
    np.testing.assert_allclose(features, eager_features(encoder), atol=1e-4)


@pytest.mark.slow
def test_lite0_is_equal_in_a_saved_model(encoder, tmp_path):
    served = served_features(encoder, str(tmp_path))
    np.testing.assert_allclose(served, eager_features(encoder), atol=1e-4)


def test_gradients_reach_the_first_layer(encoder):
    prepared = encoder.prepare(skimage.data.coffee())[tf.newaxis]
    stem = encoder.model.get_layer("conv_stem").kernel
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(encoder.encode(prepared))
    assert np.abs(tape.gradient(loss, stem.value)).max() > 0


@pytest.mark.parametrize("name", encoders.NAMES)
def test_preprocessing_works_in_graph(name):
    network = encoders._NETWORKS[name]
    pixels = np.full((1, 2, 2, 3), [200.0, 100.0, 50.0], np.float32)
    red = tf.function(network.preprocess)(pixels)[0, 0, 0].numpy()
    expected = {
        "lite": [73 / 128, -27 / 128, -77 / 128],
        "bvlc": [50 - 104.007, 100 - 116.669, 200 - 122.679],
        "caffe": [50 - 103.939, 100 - 116.779, 200 - 123.68],
        "tf": [200 / 127.5 - 1, 100 / 127.5 - 1, 50 / 127.5 - 1],
        "raw": [200, 100, 50],
    }
    np.testing.assert_allclose(red, expected[network.scaling], atol=1e-3)


# Weights of keras.applications


@writes_keras_files
def test_weights_of_our_own_model_load_from_a_remote_path(mobilenet, tmp_path):
    mobilenet.model.save_weights(tmp_path / "saved.weights.h5")
    tf.io.gfile.copy(str(tmp_path / "saved.weights.h5"), "ram://saved.weights.h5")
    loaded = encoders.create("mobilenet_v2", "ram://saved.weights.h5")
    assert loaded.identity == mobilenet.identity


@writes_keras_files
def test_weights_as_published_by_keras_load(tmp_path):
    published = keras.applications.MobileNetV2(weights=None, include_top=False, pooling="avg")
    path = str(tmp_path / "mobilenet_no_top.h5")
    published.save(path)
    loaded = encoders.create("mobilenet_v2", path)
    assert loaded.weights_sha256 == parameters.sha256(published)


@writes_keras_files
def test_bad_weights_files_are_named(tmp_path):
    def small(units):
        dense = keras.layers.Dense(units)
        return keras.Sequential([keras.Input((4,)), dense], name="small")

    small(3).save_weights(tmp_path / "other.weights.h5")
    small(3).save(tmp_path / "other.h5")
    for name in ("junk.h5", "junk.weights.h5", "junk.keras", "junk.txt"):
        (tmp_path / name).write_text("no weights")
    for path in tmp_path.iterdir():
        with pytest.raises(ValueError, match=f"{path.name} does not hold weights of small: .*\\.$"):
            parameters.load(small(2), str(path))
    with pytest.raises(FileNotFoundError, match=r"absent\.h5 does not exist"):
        parameters.load(small(2), str(tmp_path / "absent.h5"))


def test_a_failed_download_names_the_flag(tmp_path):
    def constructor(**_):
        keras.utils.get_file(origin="http://127.0.0.1:9/weights.h5", cache_dir=tmp_path)

    network = dataclasses.replace(
        applications.APPLICATIONS["mobilenet_v2"], constructor=constructor
    )
    with pytest.raises(OSError, match=r"could not be downloaded .*`--encoder_weights`"):
        network.load()


@pytest.mark.slow
@writes_keras_files
def test_vgg16_loads_the_published_file_and_ends_at_fc2(tmp_path):
    published = keras.applications.VGG16(weights=None)
    published.save(tmp_path / "vgg16.h5")
    fc2 = keras.Model(published.input, published.get_layer("fc2").output)
    vgg = encoders.create("vgg16", str(tmp_path / "vgg16.h5"))
    prepared = vgg.prepare(skimage.data.chelsea())
    assert vgg.feature_size == 4096
    np.testing.assert_allclose(vgg.encode(prepared[tf.newaxis]), fc2(prepared), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", encoders.NAMES)
def test_every_encoder_runs_without_xla(name):
    encoder = encoders.create(name, "random")
    prepared = encoder.prepare(skimage.data.chelsea())[tf.newaxis]
    assert encoder.encode(prepared).shape == (1, encoder.feature_size)
    assert not uses_xla(encoder.encode, prepared)


# Grouped convolution


def test_grouped_convolutions_are_replaced_by_equal_ones():
    inputs = keras.Input((9, 9, 6))
    x = keras.layers.Conv2D(8, 3, 2, padding="same", groups=2)(inputs)
    x = keras.layers.Conv2D(8, 3, padding="same", groups=8, activation="relu")(x)
    model = keras.Model(inputs, keras.layers.Conv2D(4, 1)(x))
    replaced = grouped_conv.without_xla(model)
    batch = tf.random.stateless_normal([2, 9, 9, 6], [1, 2])
    assert uses_xla(model, batch) and not uses_xla(replaced, batch)
    np.testing.assert_allclose(replaced(batch), model(batch), atol=1e-5)


def test_models_without_groups_are_left_alone(mobilenet):
    assert grouped_conv.without_xla(mobilenet.model) is mobilenet.model


# AlexNet

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


def numpy_alexnet(x, layers):
    def convolved(x, name, groups=1, **options):
        kernel, bias = layers[name]
        pairs = zip(np.split(x, groups, -1), np.split(kernel, groups, -1), strict=True)
        y = np.concatenate([numpy_convolution(part, k, **options) for part, k in pairs], -1)
        return np.maximum(y + bias, 0)

    def normalised(x):
        padded = np.pad(x**2, [(0, 0), (0, 0), (2, 2)])
        energy = sum(padded[..., i : i + x.shape[-1]] for i in range(5))
        return x / (1 + 2e-5 * energy) ** 0.75

    def pooled(x):
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(0, 1))
        return windows[::2, ::2].max(axis=(-2, -1))

    x = pooled(normalised(convolved(x, "conv1", stride=4, same=False)))
    x = pooled(normalised(convolved(x, "conv2", groups=2)))
    x = convolved(convolved(x, "conv3"), "conv4", groups=2)
    x = pooled(convolved(x, "conv5", groups=2)).reshape(-1)
    for kernel, bias in (layers["fc6"], layers["fc7"]):
        x = np.maximum(x @ kernel + bias, 0)
    return x


@pytest.fixture
def small_alexnet(monkeypatch, tmp_path):
    monkeypatch.setattr(alexnet, "KERNELS", SMALL_KERNELS)
    np.save(tmp_path / "small.npy", random_layers(SMALL_KERNELS))
    return encoders.create("alexnet", str(tmp_path / "small.npy"))


def test_alexnet_equals_its_float64_reference(small_alexnet):
    prepared = small_alexnet.prepare(skimage.data.chelsea())
    layers = random_layers(SMALL_KERNELS)
    expected = numpy_alexnet(prepared[0].numpy().astype(np.float64), layers)
    assert np.count_nonzero(expected) > 1
    features = small_alexnet.encode(prepared[tf.newaxis])
    np.testing.assert_allclose(features[0], expected, rtol=1e-4, atol=1e-4)


@writes_keras_files
def test_alexnet_survives_saving(small_alexnet, tmp_path):
    expected = eager_features(small_alexnet)
    served = served_features(small_alexnet, str(tmp_path / "saved_model"))
    np.testing.assert_allclose(served, expected, rtol=1e-4, atol=1e-4)

    small_alexnet.model.save(tmp_path / "small.keras")
    restored = keras.models.load_model(tmp_path / "small.keras")
    assert parameters.sha256(restored) == small_alexnet.weights_sha256
    prepared = small_alexnet.prepare(images.decode(photographs()[0]))
    np.testing.assert_allclose(restored(prepared), expected[:1], rtol=1e-4, atol=1e-4)


def test_alexnet_needs_its_weights(tmp_path):
    with pytest.raises(ValueError, match="alexnet comes without weights: give `--encoder_weights"):
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


# Pickled weights


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_malicious_npy_is_refused(tmp_path):
    np.save(tmp_path / "evil.npy", {"conv1": [Malicious(tmp_path / "harm")]})
    with pytest.raises(ValueError, match=r"evil\.npy .* asks for (posix|nt)\.mkdir"):
        encoders.create("alexnet", str(tmp_path / "evil.npy"))
    assert not (tmp_path / "harm").exists()


def test_a_malicious_pth_is_refused(tmp_path):
    head = [0x1950A86A20F9469CFC6C, 1001, {}]
    parts = [*head, {"_fc.weight": Malicious(tmp_path / "harm")}, []]
    path = tmp_path / "evil.pth"
    path.write_bytes(b"".join(pickle.dumps(part, protocol=2) for part in parts))
    with pytest.raises(ValueError, match=r"evil\.pth .* asks for (posix|nt)\.mkdir"):
        encoders.create("efficientnet_lite0", str(path))
    assert not (tmp_path / "harm").exists()


def test_a_pth_cannot_look_outside_its_storages(tmp_path):
    # A tensor of 8 values on a storage of 4.
    tensor = (
        b"\x80\x02}U\x01wctorch._utils\n_rebuild_tensor_v2\n"
        b"((U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x04NtQK\x00K\x08\x85K\x01\x85\x89}tRs."
    )
    parts = [pickle.dumps(part, protocol=2) for part in (0x1950A86A20F9469CFC6C, 1001, {})]
    values = (4).to_bytes(8, "little") + np.zeros(4, "<f4").tobytes()
    path = tmp_path / "wide.pth"
    path.write_bytes(b"".join([*parts, tensor, pickle.dumps(["0"], protocol=2), values]))
    with pytest.raises(ValueError, match=r"wide\.pth is no .*strides is incompatible"):
        pickles.read_torch(str(path))
    path.write_bytes(path.read_bytes().replace(b"K\x08\x85K\x01\x85", b"K\x04\x85K\x01\x85"))
    np.testing.assert_array_equal(pickles.read_torch(str(path))["w"], np.zeros(4))


def test_an_npy_written_by_python_2_is_read(tmp_path):
    def array(shape, dtype, order, flags, data):
        head = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
        kind = b"cnumpy\ndtype\nU\x02" + dtype + b"K\x00K\x01\x87R(K\x03U\x01" + order
        kind += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK" + flags + b"tb"
        return head + shape + kind + b"\x89" + data + b"tb"

    values = np.array([1.0, -2.5], "<f4")
    weights = array(b"K\x02\x85", b"f4", b"<", b"\x00", b"U\x08" + values.tobytes())
    layers = array(b")", b"O8", b"|", b"?", b"]}U\x02fc]" + weights + b"asa")
    header = {"descr": "|O", "fortran_order": False, "shape": ()}
    with open(tmp_path / "old.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.write(b"\x80\x02" + layers + b".")
    np.testing.assert_array_equal(pickles.read_npy(str(tmp_path / "old.npy"))["fc"], [values])

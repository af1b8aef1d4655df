import keras
import numpy as np
import pytest
import skimage.data
import tensorflow as tf

from mrnn_tf.vision import crops, encoders, images


def test_identity_is_of_the_weights_and_of_the_preprocessing(lite0):
    assert lite0.identity == "efficientnet_lite0:cedb27358b32:warp224-lite:crops=1:1280"
    assert lite0.describe() | {"weights_sha256": ""} == {
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


def test_create_refuses_unknown_names_and_crops():
    with pytest.raises(ValueError, match=r"Unknown encoder 'vgg': .*vgg16, vgg19"):
        encoders.create("vgg")
    with pytest.raises(ValueError, match=r"`crops` must be one of \(1, 10\), received 5"):
        encoders.create("efficientnet_lite0", crops=5)


def test_ten_crops_are_averaged():
    inputs = keras.Input((7, 7, 3))
    model = keras.Model(inputs, keras.layers.GlobalMaxPooling2D()(inputs))
    network = encoders.Backbone(lambda _: model, lambda pixels: pixels / 255.0, 7, "unit")
    encoder = encoders.Encoder("brightest", network, model, crops=10)
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (side, 20, 3), dtype=np.uint8) for side in (8, 30)]
    prepared = tf.stack([encoder.prepare(image) for image in pictures])
    expected = [
        crops.ten_crop(image, 8, 7).numpy().max(axis=(1, 2)).mean(axis=0) / 255
        for image in pictures
    ]
    np.testing.assert_allclose(encoder.encode(prepared), expected, rtol=1e-5)


class CountWindows(keras.layers.Layer):
    """Answers every window with the number of windows that came with it, times a weight."""

    def build(self, _):
        self.weight = self.add_weight(initializer="ones")

    def call(self, windows):
        count = tf.cast(tf.shape(windows)[0], tf.float32)
        return self.weight * count * tf.ones([tf.shape(windows)[0], 1])

    def compute_output_shape(self, shape):
        return (shape[0], 1)


def test_crops_are_encoded_by_chunks():
    inputs = keras.Input((7, 7, 3))
    model = keras.Model(inputs, CountWindows()(inputs))
    network = encoders.Backbone(lambda _: model, lambda pixels: pixels, 7, "unit")
    encoder = encoders.Encoder("count", network, model, crops=10)
    with tf.GradientTape() as tape:
        features = encoder.encode(tf.zeros([7, 10, 7, 7, 3]))
        total = tf.reduce_sum(features)
    assert encoders.WINDOWS_AT_ONCE == 8  # eight chunks of 8 windows, and one of 6
    np.testing.assert_allclose(features[:, 0], [8, 8, 8, 8, 8, 8, (4 * 8 + 6 * 6) / 10])
    [gradient] = tape.gradient(total, [variable.value for variable in model.trainable_variables])
    np.testing.assert_allclose(gradient, total, rtol=1e-5)


def test_features_are_equal_eagerly_and_in_a_pipeline(lite0, photographs, eager_features):
    dataset = tf.data.Dataset.from_tensor_slices(photographs)
    dataset = dataset.map(lambda content: lite0.prepare(images.decode(content))).batch(2)
    features = tf.function(lite0.encode)(dataset.get_single_element())
    np.testing.assert_allclose(features, eager_features(lite0), atol=1e-4)


@pytest.mark.slow
def test_lite0_is_equal_in_a_saved_model(lite0, eager_features, served_features):
    np.testing.assert_allclose(served_features(lite0), eager_features(lite0), atol=1e-4)


def test_gradients_reach_the_first_layer(lite0):
    prepared = lite0.prepare(skimage.data.coffee())[tf.newaxis]
    stem = lite0.model.get_layer("conv_stem").kernel
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(lite0.encode(prepared))
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

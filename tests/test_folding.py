import keras
import numpy as np
import pytest
import skimage.data
import tensorflow as tf

from mrnn_tf.vision import efficientnet_lite, encoders, folding


@pytest.mark.parametrize("name", efficientnet_lite.SCALES)
def test_a_folded_encoder_has_the_same_features_and_identity(name):
    encoder = encoders.create(name)
    folded = encoder.folded()
    prepared = encoder.prepare(skimage.data.coffee())[tf.newaxis]
    np.testing.assert_allclose(folded.encode(prepared), encoder.encode(prepared), atol=1e-4)
    assert (folded.identity, folded.describe()) == (encoder.identity, encoder.describe())
    kinds = {type(layer) for layer in folded.model.layers}
    assert keras.layers.BatchNormalization not in kinds
    assert encoder.model.get_layer("bn0").trainable_variables


def random_norms(model):
    rng = np.random.default_rng(0)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.set_weights([rng.uniform(0.5, 1.5, weight.shape) for weight in layer.weights])


def test_every_kind_of_convolution_is_folded():
    inputs = keras.Input((9, 9, 6))
    x = keras.layers.Conv2D(8, 3, bias_initializer="ones")(inputs)
    x = keras.layers.BatchNormalization(scale=False)(x)
    x = keras.layers.DepthwiseConv2D(3, depth_multiplier=2, use_bias=False)(x)
    x = keras.layers.BatchNormalization(center=False)(x)
    x = keras.layers.Conv2D(8, 1, groups=4)(keras.layers.ReLU()(x))
    model = keras.Model(inputs, keras.layers.BatchNormalization()(x))
    random_norms(model)
    folded = folding.folded(model)
    batch = tf.random.stateless_normal([2, 9, 9, 6], [1, 2])
    np.testing.assert_allclose(folded(batch), model(batch), rtol=1e-4, atol=1e-4)
    assert len(folded.layers) == len(model.layers) - 3


def test_other_norms_stay():
    inputs = keras.Input((9, 9, 6))
    x = keras.layers.Conv2D(8, 3, activation="relu")(inputs)
    x = shared = keras.layers.Conv2D(8, 1)(keras.layers.BatchNormalization()(x))
    x = keras.layers.Add()([keras.layers.BatchNormalization()(x), shared])
    model = keras.Model(inputs, keras.layers.BatchNormalization()(x))
    random_norms(model)
    assert folding.folded(model) is model


def test_applications_are_folded():
    mobilenet = encoders.create("mobilenet_v2", "random")
    random_norms(mobilenet.model)
    prepared = mobilenet.prepare(skimage.data.coffee())[tf.newaxis]
    features, folded = mobilenet.encode(prepared), mobilenet.folded()
    atol = 1e-4 * np.abs(features).max()
    np.testing.assert_allclose(folded.encode(prepared), features, rtol=0, atol=atol)

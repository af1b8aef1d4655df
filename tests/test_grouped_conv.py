import keras
import numpy as np
import pytest
import skimage.data
import tensorflow as tf

from mrnn_tf.vision import encoders, grouped_conv


def uses_xla(function, *inputs):
    graph = tf.function(function).get_concrete_function(*inputs).graph
    return "_XlaMustCompile" in str(graph.as_graph_def())


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


@pytest.mark.slow
@pytest.mark.parametrize("name", encoders.NAMES)
def test_every_encoder_runs_without_xla(name):
    encoder = encoders.create(name, "random")
    prepared = encoder.prepare(skimage.data.chelsea())[tf.newaxis]
    assert encoder.encode(prepared).shape == (1, encoder.feature_size)
    assert not uses_xla(encoder.encode, prepared)

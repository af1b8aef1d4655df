import keras
import numpy as np
import pytest
import tensorflow as tf

from mrnn_tf import config
from mrnn_tf.model import cell as cells

BATCH, TIME, UNITS, INPUT = 3, 5, 4, 6


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def float64():
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_dtype_policy("float32")


def unrolled(cell, inputs):
    return keras.layers.RNN(cell, return_sequences=True)(inputs)


def randomize(layer, rng):
    layer.set_weights([rng.normal(0, 0.7, w.shape) for w in layer.get_weights()])


@pytest.mark.parametrize("activation", config.ACTIVATIONS)
def test_mrnn_cell_is_equation_2(activation, rng):
    words = rng.normal(size=(BATCH, TIME, UNITS)).astype("float32")
    cell = cells.MRNNCell(UNITS, activation)
    unrolled(cell, words)
    randomize(cell, rng)
    f2 = {
        "relu": lambda x: np.maximum(x, 0),
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "scaled_tanh": lambda x: 1.7159 * np.tanh(2 / 3 * x),
    }[activation]
    (kernel,) = cell.get_weights()
    r, expected = np.zeros((BATCH, UNITS)), []
    for t in range(TIME):
        r = f2(r @ kernel + words[:, t])
        expected.append(r)
    np.testing.assert_allclose(unrolled(cell, words), np.stack(expected, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_gated_cells_equal_the_layers_of_keras(kind, rng):
    inputs = rng.normal(size=(BATCH, TIME, INPUT)).astype("float32")
    reference = {"gru": keras.layers.GRU, "lstm": keras.layers.LSTM}[kind](
        UNITS, return_sequences=True
    )
    reference(inputs)
    randomize(reference, rng)
    kernel, recurrent_kernel, bias = reference.get_weights()
    cell = cells.recurrent_cell(kind, UNITS, "relu")
    if kind == "gru":
        input_bias, recurrent_bias = bias
        weights = [recurrent_kernel, recurrent_bias]
    else:
        input_bias, weights = bias, [recurrent_kernel]
    projected = (inputs @ kernel + input_bias).astype("float32")
    unrolled(cell, projected)
    cell.set_weights(weights)
    np.testing.assert_allclose(unrolled(cell, projected), reference(inputs), atol=1e-5)


def test_the_forget_gate_of_an_lstm_starts_open():
    reference = keras.layers.LSTM(UNITS)
    reference.build((None, None, INPUT))
    ours = cells.LSTMCell(UNITS).input_bias((4 * UNITS,), "float32")
    np.testing.assert_array_equal(ours, reference.get_weights()[2])


@pytest.mark.parametrize("activation", config.ACTIVATIONS)
def test_gradients_through_time_equal_finite_differences(activation, rng, float64):
    words = tf.constant(rng.normal(size=(BATCH, TIME, UNITS)))
    weights = tf.constant(rng.normal(size=(BATCH, TIME, UNITS)))
    cell = cells.MRNNCell(UNITS, activation)
    rnn = keras.layers.RNN(cell, return_sequences=True)
    rnn(words)
    kernel = tf.constant(rng.normal(0, 0.7, (UNITS, UNITS)))

    def value(words, kernel):
        cell.recurrent_kernel.assign(kernel)
        return tf.reduce_sum(weights * rnn(words))

    with tf.GradientTape() as tape:
        tape.watch(words)
        total = value(words, kernel)
    gradients = tape.gradient(total, [words, cell.recurrent_kernel.value])
    for which, gradient in enumerate(gradients):
        direction = rng.normal(size=gradient.shape)
        ends = []
        for sign in (1, -1):
            arguments = [words, kernel]
            arguments[which] = arguments[which] + sign * 1e-6 * direction
            ends.append(value(*arguments))
        difference = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(np.sum(gradient * direction), difference, rtol=1e-6)


@pytest.mark.parametrize("kind", config.CELLS)
def test_cells_survive_serialization(kind):
    cell = cells.recurrent_cell(kind, UNITS, "scaled_tanh")
    config = keras.saving.serialize_keras_object(cell)
    assert keras.saving.deserialize_keras_object(config).get_config() == cell.get_config()

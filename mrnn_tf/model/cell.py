"""The recurrent cells: each takes its input already projected and does the recurrent product.

The projection of the words is one matrix product over the whole sequence, outside the recurrence.
All cells follow the protocol of `keras.layers.RNN`.
"""

import keras
import numpy as np
from keras import ops

from mrnn_tf.model.layers import register, scaled_tanh

ACTIVATIONS = {"relu": ops.relu, "sigmoid": ops.sigmoid, "scaled_tanh": scaled_tanh}


@register
def unit_forget_bias(shape, dtype=None):
    """The initial bias of an LSTM's input projection: one for the forget gate, else zero."""
    return np.repeat([0.0, 1.0, 0.0, 0.0], shape[0] // 4).astype(dtype)


class RecurrentCell(keras.layers.Layer):
    """What the cells share: a recurrent kernel, and an input of `gates * units` values."""

    gates = 1
    states = 1
    input_bias = "zeros"  # initializer of the bias of the input projection

    def __init__(self, units, recurrent_initializer="orthogonal", **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.recurrent_initializer = keras.initializers.get(recurrent_initializer)
        self.state_size = [units] * self.states
        self.output_size = units

    def build(self, input_shape):
        shape, initializer = (self.units, self.gates * self.units), self.recurrent_initializer
        self.recurrent_kernel = self.add_weight(shape, initializer, name="recurrent_kernel")

    def get_config(self):
        initializer = keras.initializers.serialize(self.recurrent_initializer)
        own = {"units": self.units, "recurrent_initializer": initializer}
        return {**super().get_config(), **own}


@register
class MRNNCell(RecurrentCell):
    """The recurrent step of the m-RNN: the word enters without a projection of its own.

    With the sigmoid and behind a dense projection it is the Elman network, Eq. 1. `activation`,
    one of `ACTIVATIONS`, is f2.

    Example:

    >>> cell = MRNNCell(256)
    >>> r = keras.layers.RNN(cell, return_sequences=True)(np.zeros((8, 12, 256)))
    """

    def __init__(self, units, activation="relu", **kwargs):
        super().__init__(units, **kwargs)
        self.activation = activation

    def call(self, inputs, states):
        product = ops.matmul(states[0], self.recurrent_kernel)
        r = ACTIVATIONS[self.activation](product + inputs)  # Eq. 2
        return r, [r]

    def get_config(self):
        return {**super().get_config(), "activation": self.activation}


@register
class GRUCell(RecurrentCell):
    """The step of `keras.layers.GRU(reset_after=True)` on 3 * units of input: z, r, candidate."""

    gates = 3

    def build(self, input_shape):
        super().build(input_shape)
        self.recurrent_bias = self.add_weight((3 * self.units,), "zeros", name="recurrent_bias")

    def call(self, inputs, states):
        (h,) = states
        product = ops.matmul(h, self.recurrent_kernel) + self.recurrent_bias
        input_z, input_r, input_c = ops.split(inputs, 3, axis=-1)
        product_z, product_r, product_c = ops.split(product, 3, axis=-1)
        z = ops.sigmoid(input_z + product_z)
        r = ops.sigmoid(input_r + product_r)
        h = z * h + (1 - z) * ops.tanh(input_c + r * product_c)
        return h, [h]


@register
class LSTMCell(RecurrentCell):
    """The step of `keras.layers.LSTM` on 4 * units of input: i, f, candidate, o."""

    gates = 4
    states = 2
    input_bias = staticmethod(unit_forget_bias)

    def call(self, inputs, states):
        h, c = states
        i, f, candidate, o = ops.split(ops.matmul(h, self.recurrent_kernel) + inputs, 4, axis=-1)
        c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(candidate)
        h = ops.sigmoid(o) * ops.tanh(c)
        return h, [h, c]


def recurrent_cell(
    kind: str, units: int, activation: str, initializer="orthogonal"
) -> RecurrentCell:
    """The cell of a `ModelConfig.cell`; `activation` is for `mrnn` alone."""
    options = {"recurrent_initializer": initializer, "name": "cell"}
    if kind in ("mrnn", "elman"):
        return MRNNCell(units, activation if kind == "mrnn" else "sigmoid", **options)
    return {"gru": GRUCell, "lstm": LSTMCell}[kind](units, **options)

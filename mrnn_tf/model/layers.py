"""The small layers of the network that Keras does not have."""

import itertools
import math
from collections.abc import Sequence

import keras
import tensorflow as tf
from keras import ops

register = keras.saving.register_keras_serializable(package="mrnn_tf")


@register
def scaled_tanh(x):
    """g2(x) = 1.7159 tanh(2x / 3), Eq. 4."""
    return 1.7159 * ops.tanh(x * (2 / 3))


@register
class FeatureNorm(keras.layers.Layer):
    """Scales every feature vector to one length; a zero vector stays zero.

    Of joined features every part has the same share of the length, or the longest would count
    alone. `parts` are their sizes; by default there is one part.

    Encoders differ in the scale of their features by orders of magnitude; after this layer one
    initialisation and one learning rate fit them all. The length is the image's learning rate: a
    step of Adam moves V_I I by its multiple. It computes in float32 under any policy: the squares
    of raw features overflow float16.
    """

    def __init__(self, length: float, parts: Sequence[int] = (), **kwargs):
        super().__init__(**{"dtype": "float32", **kwargs})
        self.length, self.parts = length, list(parts)

    def call(self, features):
        if len(self.parts) < 2:
            return _scaled(features, self.length)
        parts = ops.split(features, list(itertools.accumulate(self.parts[:-1])), axis=-1)
        length = self.length / math.sqrt(len(parts))
        return ops.concatenate([_scaled(part, length) for part in parts], axis=-1)

    def get_config(self):
        return {**super().get_config(), "length": self.length, "parts": self.parts}


def _scaled(features, length):
    square = ops.sum(ops.square(features), axis=-1, keepdims=True)
    return features * (length * ops.rsqrt(ops.maximum(square, 1e-12)))


@register
class Bias(keras.layers.Layer):
    """Adds one learned value per unit."""

    def build(self, input_shape):
        self.bias = self.add_weight(shape=input_shape[-1:], initializer="zeros", name="bias")

    def call(self, inputs):
        return inputs + self.bias


@register
class Dropout(keras.layers.Layer):
    """Sets units to zero with probability `rate` in training, and scales up the rest.

    The random state of `keras.layers.Dropout` neither resumes from a checkpoint nor differs between
    replicas: every replica draws the same mask, and `tf.train.Checkpoint` does not save it. Here
    the numbers are a pure function of the seed, of how often the layer was called, and of the
    replica. Each replica counts for itself (`on_read`), so counting costs no communication; all
    count alike, so one count is saved.
    """

    def __init__(self, rate, seed=0, **kwargs):
        super().__init__(**kwargs)
        self.rate, self.seed = rate, seed
        counter = {"aggregation": "only_first_replica", "synchronization": "on_read"}
        self.calls = keras.Variable("zeros", (), "int64", trainable=False, name="calls", **counter)

    def call(self, inputs, training=False):
        if not training or self.rate == 0.0:
            return inputs
        replica = tf.distribute.get_replica_context()
        replica_id = 0 if replica is None else replica.replica_id_in_sync_group
        seed = tf.random.fold_in(tf.constant([self.seed, 0]), self.calls.value)
        seed = tf.random.fold_in(seed, replica_id)
        self.calls.assign_add(1)
        # Whole random words against a threshold: five times as fast as uniform floats.
        shape = tf.shape(inputs)
        bits = tf.random.stateless_uniform(shape, seed, minval=None, maxval=None, dtype=tf.int32)
        kept = bits >= int(self.rate * 2**32) - 2**31
        return tf.where(kept, inputs * (1 / (1 - self.rate)), tf.zeros([], inputs.dtype))

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}

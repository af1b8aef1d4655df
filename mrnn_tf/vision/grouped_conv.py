"""Grouped convolution without XLA: Keras compiles it on a CPU, and TF Serving refuses that."""

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("mrnn_tf")
class Conv2D(keras.layers.Conv2D):
    """`keras.layers.Conv2D` of plain TensorFlow ops.

    It keeps its parent's name because Keras' weight files are keyed by the names of classes.
    """

    def convolution_op(self, inputs, kernel):
        padding = self.padding.upper()
        if self.groups == inputs.shape[-1] == self.filters:
            kernel = tf.transpose(kernel, [0, 1, 3, 2])
            return tf.nn.depthwise_conv2d(inputs, kernel, (1, *self.strides, 1), padding)
        parts = (tf.split(tensor, self.groups, axis=-1) for tensor in (inputs, kernel))
        pairs = zip(*parts, strict=True)
        return tf.concat([tf.nn.conv2d(x, k, self.strides, padding) for x, k in pairs], axis=-1)


def without_xla(model: keras.Model) -> keras.Model:
    """The same model, grouped convolutions replaced; the model itself where it has none."""
    if not any(map(_is_grouped, model.layers)):
        return model

    def replaced(layer: keras.Layer) -> keras.Layer:
        return (Conv2D if _is_grouped(layer) else type(layer)).from_config(layer.get_config())

    clone = keras.models.clone_model(model, clone_function=replaced)
    clone.set_weights(model.get_weights())
    return clone


def _is_grouped(layer: keras.Layer) -> bool:
    return isinstance(layer, keras.layers.Conv2D) and layer.groups > 1

"""Batch norms folded into the convolutions before them: the same features in less time."""

import keras
import numpy as np

_CONVOLUTIONS = (keras.layers.Conv2D, keras.layers.DepthwiseConv2D)


def folded(model: keras.Model) -> keras.Model:
    """A copy for inference with the batch norms folded; the model itself where it has none.

    norm(W x + b) = (s W) x + s (b - mean) + beta, with s = gamma / sqrt(variance + epsilon).
    """
    norms = dict(filter(None, map(_convolution_and_norm, model.layers)))
    if not norms:
        return model
    removed = {norm.name for norm in norms.values()}

    def replaced(layer: keras.Layer) -> keras.Layer:
        bias = {"use_bias": True} if layer.name in norms else {}
        return type(layer).from_config(layer.get_config() | bias)

    def called(layer: keras.Layer, *inputs, **options):
        return inputs[0] if layer.name in removed else layer(*inputs, **options)

    copy = keras.models.clone_model(model, clone_function=replaced, call_function=called)
    for layer in filter(lambda layer: layer.weights, copy.layers):
        original, norm = model.get_layer(layer.name), norms.get(layer.name)
        layer.set_weights(_fold(original, norm) if norm else original.get_weights())
    return copy


def _convolution_and_norm(norm: keras.Layer) -> tuple[str, keras.Layer] | None:
    """The name of a convolution whose only reader is a batch norm, and that norm."""
    if not isinstance(norm, keras.layers.BatchNormalization):
        return None
    layer = norm.input._keras_history.operation
    is_linear = isinstance(layer, _CONVOLUTIONS) and layer.activation is keras.activations.linear
    return (layer.name, norm) if is_linear and len(layer._outbound_nodes) == 1 else None


def _fold(layer: keras.Layer, norm: keras.Layer) -> list[np.ndarray]:
    """The kernel and the bias of a convolution and its norm together."""
    variance = norm.moving_variance.numpy().astype(np.float64)
    scale = 1 / np.sqrt(variance + norm.epsilon)
    if norm.scale:
        scale = scale * norm.gamma.numpy()
    shift = -norm.moving_mean.numpy() * scale
    if norm.center:
        shift = shift + norm.beta.numpy()
    kernel, *bias = layer.get_weights()
    if bias:
        shift = shift + bias[0] * scale
    shape = (*kernel.shape[2:],) if isinstance(layer, keras.layers.DepthwiseConv2D) else (-1,)
    return [kernel * scale.reshape(shape), shift]

"""An image encoder from any SavedModel: pixels [B, H, W, 3] in, features [B, D] out."""

import hashlib

import keras
import tensorflow as tf

from mrnn_tf.errors import UserError
from mrnn_tf.vision.applications import Backbone
from mrnn_tf.vision.scaling import SCALINGS

PREFIX = "saved_model"
_DEFAULT = "serving_default"


def load(
    directory: str, input_size: int | None = None, scaling: str | None = None
) -> tuple[Backbone, keras.Model, str]:
    """What makes pixels ready, the network, and a hash of its files.

    The signature is `serving_default`, or the only one. Its size is taken where it has one; pixels
    of type uint8 are not scaled.
    """
    if not tf.io.gfile.exists(tf.io.gfile.join(directory, "saved_model.pb")):
        raise FileNotFoundError(f"`encoder`: {directory} holds no SavedModel.")
    signatures = tf.saved_model.load(directory).signatures
    name = next(iter(signatures)) if len(signatures) == 1 else _DEFAULT
    pixels = _pixels(directory, signatures.get(name))
    sizes = {side for side in pixels.shape[1:3] if side} or {input_size}
    if None in sizes:
        raise UserError(f"`input_size` is required: {directory} takes images of any size.")
    if sizes != {input_size or max(sizes)}:
        taken = " x ".join(map(str, pixels.shape[1:3]))
        raise UserError(
            f"`input_size`: {directory} takes images of {taken}, which is another size."
        )
    if pixels.dtype == tf.uint8:
        scaling = "raw"
    if scaling not in SCALINGS:
        raise UserError(
            f"`scaling` is required, one of {', '.join(SCALINGS)}: the signature of {directory} "
            f"does not say how pixels are scaled; got {scaling!r}."
        )
    [size] = sizes
    inputs = keras.Input((size, size, 3), name="images")
    model = keras.Model(inputs, Signature(directory, name, pixels.dtype.name)(inputs))
    return Backbone(None, SCALINGS[scaling], size, scaling), model, _sha256(directory)


@keras.saving.register_keras_serializable("mrnn_tf")
class Signature(keras.layers.TFSMLayer):
    """A signature with one output, which takes `pixels_dtype`."""

    def __init__(self, directory: str, signature: str, pixels_dtype: str):
        self._pixels_dtype = pixels_dtype
        super().__init__(directory, call_endpoint=signature)

    def call(self, windows):
        if self._pixels_dtype == "uint8":
            windows = tf.round(windows)
        [features] = super().call(tf.cast(windows, self._pixels_dtype)).values()
        return features


def _pixels(directory: str, signature) -> tf.TensorSpec:
    """The input of a signature; refuses one that has other inputs or outputs."""
    wanted = "one signature from pixels [B, H, W, 3], float32 or uint8, to float32 features [B, D]"
    try:
        [pixels], [features] = (
            [*tensors.values()]
            for tensors in (signature.structured_input_signature[1], signature.structured_outputs)
        )
    except (AttributeError, ValueError) as error:
        raise UserError(f"`encoder`: {directory} must have {wanted}.") from error
    is_image = pixels.shape.rank == 4 and pixels.shape[-1] == 3
    is_vector = features.shape.rank == 2 and features.shape[-1] and features.dtype == tf.float32
    if not (is_image and is_vector and pixels.dtype in (tf.float32, tf.uint8)):
        raise UserError(f"`encoder`: {directory} must have {wanted}; got {pixels} to {features}.")
    return pixels


def _sha256(directory: str) -> str:
    """Of the graph and the variables: a graph may hold weights as constants."""
    digest = hashlib.sha256()
    pattern = tf.io.gfile.join(directory, "variables", "*")
    for path in [tf.io.gfile.join(directory, "saved_model.pb"), *sorted(tf.io.gfile.glob(pattern))]:
        with tf.io.gfile.GFile(path, "rb") as file:
            digest.update(hashlib.sha256(file.read()).digest())
    return digest.hexdigest()

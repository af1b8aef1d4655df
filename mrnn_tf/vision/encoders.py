"""Image encoders by name: one form for every network, from pixels to a feature vector."""

import functools

import keras
import tensorflow as tf

from mrnn_tf.errors import UserError
from mrnn_tf.vision import alexnet, folding, parameters
from mrnn_tf.vision import crops as cropping
from mrnn_tf.vision import efficientnet_lite as lite
from mrnn_tf.vision.applications import APPLICATIONS, Backbone

_NETWORKS = {
    **{
        name: Backbone(
            functools.partial(lite.load, name), lite.preprocess, scale.input_size, "lite"
        )
        for name, scale in lite.SCALES.items()
    },
    "alexnet": Backbone(alexnet.load, alexnet.preprocess, alexnet.INPUT_SIZE, "bvlc"),
    **APPLICATIONS,
}
NAMES = tuple(_NETWORKS)
WINDOWS_AT_ONCE = 32  # VGG16 needs 14 MB for each


class Encoder(tf.Module):
    """An image encoder: `prepare` makes windows of one image, `encode` features of a batch.

    `model` makes features [B, D] of windows [B, H, W, 3]; those of an image's `crops` windows are
    averaged. `weights_sha256` is of the weights that the encoder was created with.

    Example:
        encoder = encoders.create("efficientnet_lite0")
        windows = encoder.prepare(images.decode(tf.io.read_file("photo.jpg")))
        features = encoder.encode(windows[tf.newaxis])  # [1, 1280]
    """

    def __init__(
        self,
        name: str,
        network: Backbone,
        model: keras.Model,
        crops: int,
        weights_sha256: str | None = None,
    ):
        super().__init__(name=name)
        self.model = model
        self.feature_size = model.output_shape[-1]
        self.input_size = network.input_size
        self.crops = crops
        self.weights_sha256 = weights_sha256 or parameters.sha256(model)
        self._network = network
        view = "warp" if crops == 1 else "windows"
        self._preprocessing = f"{view}{network.input_size}-{network.scaling}"

    def folded(self) -> "Encoder":
        """The same encoder for inference: its batch norms are folded, its identity is kept."""
        model = folding.folded(self.model)
        return Encoder(self.name, self._network, model, self.crops, self.weights_sha256)

    @tf.function(input_signature=[tf.TensorSpec([None, None, 3], tf.uint8)])
    def prepare(self, image: tf.Tensor) -> tf.Tensor:
        """Preprocessed windows, float32 [crops, H, W, 3], of one uint8 RGB image [h, w, 3]."""
        return self._network.preprocess(cropping.windows(image, self.crops, self.input_size))

    @tf.function(reduce_retracing=True)
    def encode(self, images: tf.Tensor) -> tf.Tensor:
        """Features, float32 [B, D], of prepared images [B, crops, H, W, 3]; crops by chunks."""
        windows = tf.reshape(images, [-1, self.input_size, self.input_size, 3])
        if self.crops == 1:
            return self.model(windows, training=False)
        features = tf.zeros([0, self.feature_size])
        for first in tf.range(0, tf.shape(windows)[0], WINDOWS_AT_ONCE):
            tf.autograph.experimental.set_loop_options(
                parallel_iterations=1,
                shape_invariants=[(features, tf.TensorShape([None, self.feature_size]))],
            )
            chunk = self.model(windows[first : first + WINDOWS_AT_ONCE], training=False)
            features = tf.concat([features, chunk], axis=0)
        features = tf.reshape(features, [-1, self.crops, self.feature_size])
        return tf.reduce_mean(features, axis=1)

    def describe(self) -> dict[str, str | int]:
        """The parts of the identity."""
        return {
            "name": self.name,
            "weights_sha256": self.weights_sha256,
            "preprocessing": self._preprocessing,
            "crops": self.crops,
            "feature_size": self.feature_size,
        }

    @property
    def identity(self) -> str:
        """One string that is equal for two encoders only if their features are comparable."""
        digest = self.weights_sha256[:12]
        return f"{self.name}:{digest}:{self._preprocessing}:crops={self.crops}:{self.feature_size}"


def create(name: str, weights: str | None = None, crops: int = 1) -> Encoder:
    """The encoder with one of the `NAMES`.

    Args:
        weights: None for ImageNet weights (of the installed package for EfficientNet-Lite,
            downloaded by Keras for the others, none for alexnet), the path of a weights file, or
            "random" for untrained weights that are the same in every process.
        crops: 1 warps the whole image to the input size; 10 averages the paper's ten windows.
    """
    if name not in _NETWORKS:
        raise UserError(f"Unknown encoder {name!r}: choose one of {', '.join(NAMES)}.")
    if crops not in cropping.COUNTS:
        raise UserError(f"`crops` must be one of {cropping.COUNTS}, received {crops!r}.")
    network = _NETWORKS[name]
    return Encoder(name, network, network.load(weights), crops)

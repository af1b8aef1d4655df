"""Image encoders by name: one form for every network, from pixels to a feature vector."""

import functools
import inspect
import re
from collections.abc import Mapping

import keras
import tensorflow as tf

from mrnn_tf.errors import UserError
from mrnn_tf.vision import alexnet, folding, hub, parameters, saved_network
from mrnn_tf.vision import crops as cropping
from mrnn_tf.vision import efficientnet_lite as lite
from mrnn_tf.vision.applications import APPLICATIONS, Backbone
from mrnn_tf.vision.joined import JoinedEncoder

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
_LOADERS = {saved_network.PREFIX: saved_network.load, hub.PREFIX: hub.load}
_SETTINGS = {kind: inspect.signature(load).parameters for kind, load in _LOADERS.items()}
# A plus sign between two encoders, not one in the name of a directory.
_SEPARATOR = re.compile(rf"\+(?=(?:{'|'.join([*NAMES, *(f'{kind}:' for kind in _LOADERS)])}))")
WINDOWS_AT_ONCE = 8  # more are no faster on a processor; VGG16 needs 14 MB for each


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
        settings: Mapping[str, str | int] | None = None,
    ):
        super().__init__(name="encoder")
        self._encoder_name, self._settings = name, settings or {}
        self.model = model
        self.feature_size = model.output_shape[-1]
        self.input_size = network.input_size
        self.crops = crops
        self.weights_sha256 = weights_sha256 or parameters.sha256(model)
        self._network = network
        view = "warp" if crops == 1 else "windows"
        self._preprocessing = f"{view}{network.input_size}-{network.scaling}"

    @property
    def name(self) -> str:
        """As `create` takes it."""
        return self._encoder_name

    @property
    def models(self) -> list[keras.Model]:
        return [self.model]

    def folded(self) -> "Encoder":
        """The same encoder for inference: its batch norms are folded, its identity is kept."""
        model = folding.folded(self.model)
        kept = self.crops, self.weights_sha256, self._settings
        return Encoder(self.name, self._network, model, *kept)

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
            **self._settings,
        }

    @property
    def identity(self) -> str:
        """One string that is equal for two encoders only if their features are comparable."""
        kind, digest = self.name.partition(":")[0], self.weights_sha256[:12]  # wherever it lies
        return f"{kind}:{digest}:{self._preprocessing}:crops={self.crops}:{self.feature_size}"


def create(
    name: str,
    weights: str | None = None,
    crops: int = 1,
    *,
    pooling: str | None = None,
    input_size: int | None = None,
    scaling: str | None = None,
) -> Encoder | JoinedEncoder:
    """The encoder with one of the `NAMES`, or of a directory, or several, joined by `+`.

    Args:
        name: str. One of `NAMES`; `saved_model:DIR`; `keras_hub:DIR`, or a preset's name; or some
            of them joined, as in `efficientnet_lite0+keras_hub:DIR`.
        weights: None for ImageNet weights (of the installed package for EfficientNet-Lite,
            downloaded by Keras for the others, none for alexnet), the path of a weights file, or
            "random" for untrained weights that are the same in every process. Joined encoders have
            one for each, joined by commas; an empty one stands for None.
        crops: 1 warps the whole image to the input size; 10 averages the paper's ten windows.
        pooling: what a network of keras-hub makes its features of: one of `config.POOLINGS`.
        input_size: of images for a SavedModel or a preset of keras-hub that does not say it.
        scaling: of pixels for the same: one of `config.SCALINGS`.
    """
    if crops not in cropping.COUNTS:
        raise UserError(f"`crops` must be one of {cropping.COUNTS}, received {crops!r}.")
    settings = {"pooling": pooling, "input_size": input_size, "scaling": scaling}
    settings = {key: value for key, value in settings.items() if value is not None}
    names = _SEPARATOR.split(name)
    kinds = {part.partition(":")[0] for part in names}
    for key in settings:
        takers = [kind for kind, known in _SETTINGS.items() if key in known]
        if not kinds & {*takers}:
            raise UserError(f"`{key}` goes with `encoder` {' or '.join(takers)}; got {name!r}.")
    if len(names) > 1:
        files = weights.split(",") if weights else [""] * len(names)
        if len(files) != len(names):
            raise UserError(f"`encoder_weights` must be {len(names)} files; got {weights!r}.")
        pairs = zip(names, files, strict=True)
        return JoinedEncoder([_create(part, file or None, crops, settings) for part, file in pairs])
    return _create(name, weights, crops, settings)


def _create(name: str, weights: str | None, crops: int, settings: Mapping) -> Encoder:
    kind, _, place = name.partition(":")
    if kind in _LOADERS and place:
        if weights:
            raise UserError(f"`encoder_weights`: {name} has weights of its own; leave them out.")
        own = {key: value for key, value in settings.items() if key in _SETTINGS[kind]}
        network, model, digest = _LOADERS[kind](place, **own)
        return Encoder(name, network, model, crops, digest, own)
    if name not in _NETWORKS:
        others = " or ".join(f"{kind}:DIR" for kind in _LOADERS)
        raise UserError(f"Unknown encoder {name!r}: choose one of {', '.join(NAMES)}, or {others}.")
    network = _NETWORKS[name]
    return Encoder(name, network, network.load(weights), crops)

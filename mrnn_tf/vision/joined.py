"""Several image encoders as one: their features side by side."""

from collections.abc import Sequence

import keras
import tensorflow as tf

SEPARATOR = "+"


class JoinedEncoder(tf.Module):
    """Encoders whose features are joined to one vector, in the form of an `encoders.Encoder`.

    The prepared windows of an image are a tuple with one tensor for each part.
    """

    def __init__(self, parts: Sequence[tf.Module]):
        super().__init__(name="joined")
        self.parts = [*parts]
        self.feature_size = sum(part.feature_size for part in parts)
        self.crops = parts[0].crops

    @property
    def name(self) -> str:
        return SEPARATOR.join(part.name for part in self.parts)

    @property
    def models(self) -> list[keras.Model]:
        return [part.model for part in self.parts]

    def folded(self) -> "JoinedEncoder":
        """The same encoder for inference: see `Encoder.folded`."""
        return JoinedEncoder([part.folded() for part in self.parts])

    @tf.function(input_signature=[tf.TensorSpec([None, None, 3], tf.uint8)])
    def prepare(self, image: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Preprocessed windows, float32 [crops, H, W, 3] for each part, of one uint8 RGB image."""
        return tuple(part.prepare(image) for part in self.parts)

    def encode(self, images: Sequence[tf.Tensor]) -> tf.Tensor:
        """Features, float32 [B, D], of prepared images [B, crops, H, W, 3] for each part."""
        pairs = zip(self.parts, images, strict=True)
        return tf.concat([part.encode(windows) for part, windows in pairs], axis=1)

    def describe(self) -> dict:
        """The parts of the identity; `parts` are the sizes of the features that are joined."""
        described = [part.describe() for part in self.parts]
        texts = ("name", "weights_sha256", "preprocessing")
        return {
            **{key: value for facts in described for key, value in facts.items()},
            **{key: SEPARATOR.join(facts[key] for facts in described) for key in texts},
            "feature_size": self.feature_size,
            "parts": [part.feature_size for part in self.parts],
        }

    @property
    def identity(self) -> str:
        """One string that is equal for two encoders only if their features are comparable."""
        return SEPARATOR.join(part.identity for part in self.parts)

"""The multimodal recurrent network, in all its variants."""

import math
import random
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from keras.layers import Identity

from mrnn_tf import schema
from mrnn_tf.config import ModelConfig
from mrnn_tf.errors import UserError
from mrnn_tf.model.cell import recurrent_cell
from mrnn_tf.model.layers import Bias, Dropout, FeatureNorm, register, scaled_tanh
from mrnn_tf.model.variants import WIRINGS

Image = dict[str, tf.Tensor]
State = list[tf.Tensor]


@register
class MRNN(keras.Model):
    """The m-RNN: an image and words in, the logits of every next word out.

    Eqs. 2 and 3 are taken as printed: both embedding layers are linear, and U_r, V_w, V_r and V_I
    have no bias. The softmax has one, as have the input projections of the other cells.

    The inputs are a dict of `features` float [B, D], the raw output of the encoder, and `word_ids`
    int [B, T], beginning with the start sign; the output is float [B, T, V]. Decoding, scoring and
    export use the same layers through the methods. There an image is a dict with its projection
    [B, size] for every place that it enters, and a state is a list of [B, units]. V counts the
    reserved words too; `seed` is that of the initial weights and of dropout. `feature_parts` are
    the sizes of the parts of joined features.

    Example:

    >>> model = MRNN(ModelConfig(), vocabulary_size=2539, feature_size=2048)
    >>> features = np.ones((1, 2048), "float32")
    >>> logits = model({"features": features, "word_ids": np.array([[1, 17, 9]])})  # [1, 3, V]
    >>> image = model.project_image(features)
    >>> logits, state = model.step(np.array([1]), model.initial_state(image), image)  # [1, V]
    """

    def __init__(
        self,
        config: ModelConfig,
        vocabulary_size: int,
        feature_size: int,
        seed: int = 0,
        feature_parts: Sequence[int] = (),
        **kwargs,
    ):
        wiring = WIRINGS[config.variant]
        cell = wiring.cell or config.cell
        if cell == "mrnn" and config.recurrent != config.embedding_2:
            raise UserError(
                "`recurrent` must equal `embedding_2` for the cell `mrnn` (Eq. 2 adds them); "
                f"got {config.recurrent} and {config.embedding_2}."
            )
        chance = random.Random(seed)

        def dense(units, name, **kwargs):
            glorot = keras.initializers.GlorotUniform(chance.getrandbits(31))
            options = {"use_bias": False, "kernel_initializer": glorot, **kwargs}
            return keras.layers.Dense(units, name=name, **options)

        def dropout(name):
            return Dropout(getattr(config, name), chance.getrandbits(31), name=name)

        # === Layers ===
        two_layers = wiring.embedding_layers == 2
        # Words begin at the scale of the image, but a table that is the softmax too begins small.
        scale = 0.05 if wiring.tied_softmax else 0.5
        uniform = keras.initializers.RandomUniform(-scale, scale, chance.getrandbits(31))
        size = config.embedding_1 if two_layers else config.embedding_2
        self.embedding_1 = keras.layers.ReversibleEmbedding(
            vocabulary_size, size, embeddings_initializer=uniform, name="embedding_1"
        )
        self.embedding_2 = dense(config.embedding_2, "embedding_2") if two_layers else Identity()
        self.dropout_embedding = dropout("dropout_embedding")

        orthogonal = keras.initializers.Orthogonal(seed=chance.getrandbits(31))
        self.cell = recurrent_cell(cell, config.recurrent, config.activation, orthogonal)
        self.to_recurrent = Identity()
        if cell != "mrnn":
            bias = {"use_bias": True, "bias_initializer": self.cell.input_bias}
            self.to_recurrent = dense(self.cell.gates * config.recurrent, "to_recurrent", **bias)
        self.recurrence = keras.layers.RNN(self.cell, return_sequences=True, name="recurrence")
        self.dropout_recurrent = dropout("dropout_recurrent")

        multimodal = config.embedding_2 if wiring.shared_image_weights else config.multimodal
        norm = FeatureNorm(config.feature_norm, feature_parts) if config.feature_norm else None
        self.feature_norm = norm or Identity()
        self.dropout_features = dropout("dropout_features")
        shared = dense(multimodal, "image") if wiring.shared_image_weights else None
        for entry in wiring.image_to:
            size = multimodal if entry == "multimodal" else config.embedding_2
            # Attributes and not a dict of layers, which tf.train.Checkpoint would not save.
            setattr(self, f"image_to_{entry}", shared or dense(size, f"image_to_{entry}"))

        if wiring.multimodal_layer:
            self.multimodal_size = multimodal
            self.recurrent_to_multimodal = dense(multimodal, "recurrent_to_multimodal")
            self.dropout_multimodal = dropout("dropout_multimodal")
        if wiring.words_to_multimodal:
            self.words_to_multimodal = dense(multimodal, "words_to_multimodal")
        if wiring.tied_softmax:
            self.to_embedding = dense(config.embedding_1, "to_embedding")
            self.softmax = Bias(name="softmax")
        else:
            self.softmax = dense(vocabulary_size, "softmax", use_bias=True)

        # === Functional Model ===
        self.wiring = wiring
        features = keras.Input((feature_size,), dtype="float32", name=schema.FEATURES)
        word_ids = keras.Input((None,), dtype="int32", name=schema.WORD_IDS)
        image = self.project_image(features)
        logits = self.logits_from(self.word_part(word_ids, image), image)
        inputs = {schema.FEATURES: features, schema.WORD_IDS: word_ids}
        super().__init__(inputs=inputs, outputs=logits, **kwargs)

        # === Config ===
        self.config, self.vocabulary_size, self.feature_size = config, vocabulary_size, feature_size
        self.seed, self.feature_parts = seed, list(feature_parts)

    @property
    def parameter_count(self) -> int:
        """How many values are trained; `count_params` adds the counters of the dropout layers."""
        return sum(math.prod(weight.shape) for weight in self.trainable_variables)

    def project_image(self, features, training: bool | None = None) -> Image:
        """V_I I for every place that the image [B, D] enters, once for all words."""
        features = self.dropout_features(self.feature_norm(features), training=training)
        entries = self.wiring.image_to
        if not entries:
            return {"multimodal": self._zeros(features, self.multimodal_size)}
        return {entry: getattr(self, f"image_to_{entry}")(features) for entry in entries}

    def initial_state(self, image: Image) -> State:
        """The state before the first word."""
        projection, *_ = image.values()
        state = [self._zeros(projection, size) for size in self.cell.state_size]
        if "start" in image:
            _, state = self.cell(self.to_recurrent(image["start"]), state)
        return state

    def step(self, ids, state: State, image: Image) -> tuple[tf.Tensor, State]:
        """The logits [B, V] of the words after `ids` [B], and the next state."""
        words = self._embed(ids, image)
        r, state = self.cell(self.to_recurrent(words["embedding_2"]), state)
        return self.logits_from(self._join(words, r), image), state

    def word_part(self, ids, image: Image | None = None) -> tf.Tensor:
        """h = V_w w + V_r r [B, T, M]; the same for all images unless the recurrence sees them."""
        if image is None and self.wiring.recurrence_sees_image:
            variant = self.config.variant
            raise UserError(f"`{variant}` cannot read words without an image: score with `step`.")
        # No mask: padding on the right reaches the state of no word, and costs nothing.
        image = image or {}
        words = self._embed(ids, image)
        state = self.initial_state(image) if "start" in image else None
        r = self.recurrence(self.to_recurrent(words["embedding_2"]), initial_state=state)
        return self._join(words, r)

    def logits_from(self, h, image: Image) -> tf.Tensor:
        """The logits [..., V] of m = g2(h + V_I I), for h [..., M] and an image [B, M].

        With h [S, 1, T, M] it gives the logits [S, B, T, V] of every sentence and image.
        """
        if self.wiring.multimodal_layer:
            if "multimodal" in image:
                h = h + _over_time(image["multimodal"], h)
            h = self.dropout_multimodal(scaled_tanh(h))  # Eq. 3
        if self.wiring.tied_softmax:
            h = self.embedding_1(self.to_embedding(h), reverse=True)
        # The cost needs float32 under mixed precision too.
        return ops.cast(self.softmax(h), self.softmax.variable_dtype)

    def readout(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The kernel [M, V] and the bias [V] that turn m into logits."""
        if not self.wiring.tied_softmax:
            return self.softmax.kernel.value, self.softmax.bias.value
        kernel = ops.matmul(self.to_embedding.kernel, ops.transpose(self.embedding_1.embeddings))
        return kernel, self.softmax.bias.value

    def refined(self, features) -> tf.Tensor:
        """The image features refined by the model: g2(V_I I) [B, M]."""
        if "multimodal" not in self.wiring.image_to:
            where = "its image does not enter the multimodal layer"
            raise UserError(f"`{self.config.variant}` has no refined image features: {where}.")
        return scaled_tanh(self.project_image(features)["multimodal"])

    def comparable(self, features: np.ndarray) -> np.ndarray:
        """Features [B, D] to take distances of: raw, but joined parts of length 1 each."""
        if len(self.feature_parts) < 2:
            return features
        return ops.convert_to_numpy(FeatureNorm(1.0, self.feature_parts)(features))

    def word_vectors(self) -> tf.Tensor:
        """The activation [V, E] of word embedding layer II for every word."""
        return self._embed(ops.arange(self.vocabulary_size), {})["embedding_2"]

    def get_config(self):
        sizes = {"vocabulary_size": self.vocabulary_size, "feature_size": self.feature_size}
        parts = {"feature_parts": self.feature_parts, "seed": self.seed, "name": self.name}
        return {"config": self.config.to_dict(), **sizes, **parts}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**{**config, "config": ModelConfig.from_dict(config["config"])})

    def _embed(self, ids, image):
        first = self.embedding_1(ids)
        second = self.embedding_2(first)
        if "embedding" in image:
            second = second + _over_time(image["embedding"], second)
        words = {"embedding_1": first, "embedding_2": second}
        return {name: self.dropout_embedding(vectors) for name, vectors in words.items()}

    def _join(self, words, r):
        h = self.dropout_recurrent(r)
        if self.wiring.multimodal_layer:
            h = self.recurrent_to_multimodal(h)
        if self.wiring.words_to_multimodal:
            h = h + self.words_to_multimodal(words[self.wiring.words_to_multimodal])
        return h

    def _zeros(self, batch, size):
        one = ops.zeros_like(batch[:, :1], dtype=self.cell.compute_dtype)
        return ops.repeat(one, size, axis=-1)


def _over_time(image, words):
    """The projection of an image with a time axis where the words have one."""
    return image[..., None, :] if len(image.shape) < len(words.shape) else image

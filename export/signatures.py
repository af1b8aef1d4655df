"""The signatures of a served m-RNN: everything between bytes and sentences, in one graph.

Only this file and `index_signatures` have an `input_signature`. Sizes are fixed at export: N
sentences of an image, K next words, T = max_words + 1 words of a sentence with its end sign. An
image that cannot be decoded has features of zeros, and features of zeros or with what is no number
have no sentences: "" with `schema.MISSING_LOG_PROB`. One bad row never changes another.
"""

import dataclasses

import tensorflow as tf

from mrnn_tf import decode, schema
from mrnn_tf.config import BeamSearch
from mrnn_tf.run import Run
from mrnn_tf.vision import images
from mrnn_tf.vision.encoders import Encoder

_MISSING = schema.MISSING_LOG_PROB


@dataclasses.dataclass(frozen=True)
class Settings:
    """What an export fixes."""

    beam: int = 5
    top_k: int = 10
    max_words: int = 20
    length_power: float = BeamSearch.length_power


class Servable:
    """A run with its tokeniser and, where there is one, its image encoder.

    Args:
        run: Run.
        encoder: Encoder, whose features the run was trained on; `None` serves features only.
        settings: Settings.
    """

    name = schema.MODEL

    def __init__(self, run: Run, encoder: Encoder | None, settings: Settings):
        self.network, self.vocabulary, self.encoder = run.network, run.vocabulary, encoder
        self.settings = settings

    @property
    def feature_size(self) -> int:
        return self.network.model.feature_size

    @property
    def default(self) -> str:
        """The signature that is served by default."""
        return schema.BEAM_DECODE if self.encoder is None else schema.CAPTION

    def beam_decode(self, features: tf.Tensor, prefix: tf.Tensor) -> dict[str, tf.Tensor]:
        """The best sentences of images that begin with some words, and why."""
        features = or_nothing(features)
        prefix_ids = self.vocabulary.ids(prefix).to_tensor(schema.PAD_ID)
        found = self.best_sentences(features, prefix_ids)
        blank = self.network.blank(tf.shape(features)[0])
        is_word = found.ids != schema.PAD_ID
        evidence = decode.evidence(self.network.model, blank, found, prefix_ids)
        sentences = self.vocabulary.sentences(found.ids)
        typed = tf.repeat(prefix[:, tf.newaxis], self.settings.beam, axis=1)
        captions = tf.strings.strip(tf.strings.join([tf.strings.strip(typed), sentences], " "))
        return {
            schema.CAPTIONS: tf.where(found.log_probs > _MISSING, captions, ""),
            schema.LOG_PROBS: found.log_probs,
            schema.WORDS: tf.where(is_word, self.vocabulary.lookup(found.ids), ""),
            schema.WORD_LOG_PROBS: tf.where(is_word, found.word_log_probs, 0.0),
            schema.WORD_EVIDENCE: tf.where(is_word, evidence, 0.0),
        }

    def caption(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        """The best sentences of encoded images."""
        found = self.best_sentences(or_nothing(self._encode(image_bytes)))
        return {
            schema.CAPTIONS: self.vocabulary.sentences(found.ids),
            schema.LOG_PROBS: found.log_probs,
        }

    def next_word(self, features: tf.Tensor, prefix: tf.Tensor) -> dict[str, tf.Tensor]:
        """The most probable words after some words; the end sign is one of them."""
        prefix_ids = self.vocabulary.ids(prefix).to_tensor(schema.PAD_ID)
        image = self.network.model.project_image(or_nothing(features))
        step, state, ids = decode.begin(self.network.model, image, prefix_ids)
        ids, log_probs = decode.next_words(step, state, ids, self.settings.top_k)
        return {
            schema.WORDS: tf.where(ids != schema.PAD_ID, self.vocabulary.lookup(ids), ""),
            schema.LOG_PROBS: log_probs,
        }

    def sentence_log_prob(self, features: tf.Tensor, sentences: tf.Tensor) -> dict[str, tf.Tensor]:
        """log P(sentence | image); an unknown word is charged as the word <unk>."""
        ids = self.vocabulary.ids(sentences)
        ends = tf.fill([tf.shape(features)[0], 1], schema.END_ID)
        words = tf.concat([ids, tf.RaggedTensor.from_tensor(ends)], axis=1)
        count = tf.cast(words.row_lengths(), tf.int32)
        model = self.network.model
        step, state, first = decode.begin(model, model.project_image(or_nothing(features)))
        gained = decode.rescore(step, state, first, words.to_tensor(schema.PAD_ID))
        total = tf.reduce_sum(gained, axis=1)
        there = tf.math.is_finite(total)
        perplexity = tf.exp(-total / tf.cast(count, tf.float32))  # Eq. 5
        return {
            schema.LOG_PROB: tf.where(there, total, _MISSING),
            schema.PERPLEXITY: tf.where(there, tf.minimum(perplexity, -_MISSING), -_MISSING),
            schema.NUM_WORDS: count,
            schema.NUM_UNKNOWN: tf.reduce_sum(tf.cast(ids == schema.UNKNOWN_ID, tf.int32), axis=1),
            schema.WORD_LOG_PROBS: tf.where(there[:, tf.newaxis], gained, 0.0),
        }

    def encode_image(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        """The features of encoded images, and those refined by the model: g2(V_I I)."""
        features = self._encode(image_bytes)
        encoded = {schema.FEATURES: features}
        if "multimodal" in self.network.model.wiring.image_to:
            encoded[schema.REFINED] = self.network.model.refined(features)
        return encoded

    def best_sentences(
        self, features: tf.Tensor, prefix: tf.Tensor | None = None
    ) -> decode.Decoded:
        """What a beam search finds for images, of which those without numbers have nothing."""
        settings, model = self.settings, self.network.model
        return decode.beam(
            *decode.begin(model, model.project_image(features), prefix),
            BeamSearch(settings.beam, settings.max_words, settings.length_power),
        )

    def _encode(self, image_bytes: tf.Tensor) -> tf.Tensor:
        encoder = self.encoder
        shape = [encoder.crops, encoder.input_size, encoder.input_size, 3]
        nothing = tf.data.Dataset.from_tensors((tf.zeros(shape), False))

        def prepare(content):
            return encoder.prepare(images.decode(content)), True

        def prepare_or_not(content):
            # What fails inside a dataset can be left out, unlike what fails in the graph itself.
            one = tf.data.Dataset.from_tensors(content).map(prepare).ignore_errors()
            return one.concatenate(nothing).take(1).get_single_element()

        windows, decoded = tf.map_fn(
            prepare_or_not,
            image_bytes,
            fn_output_signature=(tf.TensorSpec(shape), tf.TensorSpec([], tf.bool)),
        )
        return tf.where(decoded[:, tf.newaxis], encoder.encode(windows), 0.0)

    def tracked(self) -> tf.Module:
        """What a SavedModel must own.

        The variables themselves and not the Keras models around them: of those, `save` would write
        copies, which TensorFlow's Python resolves, but a session, as TF Serving has, does not.
        """
        models = [self.network.model, *([self.encoder.model] if self.encoder else [])]
        root = tf.Module(name=self.name)
        root.weights = [each.value for model in models for each in model.variables]
        root.mean_features, root.vocabulary = self.network.mean_features, self.vocabulary
        return root


def signatures(servable: Servable) -> dict[str, tf.types.experimental.ConcreteFunction]:
    """The functions that a SavedModel offers, by name."""
    features = tf.TensorSpec([None, servable.feature_size], tf.float32, schema.FEATURES)

    def concrete(method, *inputs):
        return tf.function(method, input_signature=inputs).get_concrete_function()

    def strings(name):
        return tf.TensorSpec([None], tf.string, name)

    found = {
        schema.BEAM_DECODE: concrete(servable.beam_decode, features, strings(schema.PREFIX)),
        schema.NEXT_WORD: concrete(servable.next_word, features, strings(schema.PREFIX)),
        schema.SENTENCE_LOG_PROB: concrete(
            servable.sentence_log_prob, features, strings(schema.SENTENCES)
        ),
    }
    if servable.encoder is not None:
        image = strings(schema.IMAGE_BYTES)
        found[schema.CAPTION] = concrete(servable.caption, image)
        found[schema.ENCODE_IMAGE] = concrete(servable.encode_image, image)
    return {**found, schema.SERVING_DEFAULT: found[servable.default]}


def or_nothing(features: tf.Tensor) -> tf.Tensor:
    """Features that are all zero, as those of an undecodable image, become no numbers."""
    empty = tf.reduce_all(features == 0.0, axis=1, keepdims=True)
    return tf.where(empty, float("nan"), features)

"""From images and words to sentences and scores, as tensors: what every user of a model calls.

`Captioner`, the exported SavedModel and `trainer.evaluate` all run these methods. Sizes are fixed
when an `Inference` is made: N sentences of an image, K next words, T = max_words + 1 words of a
sentence with its end token. An undecodable image has zero features, and zero or non-finite features
have no sentences: "" with `schema.MISSING_LOG_PROB`. The same holds for a sentence or a prefix of
more than `max_text_words`, which is not read. One bad row never changes another.
"""

import dataclasses
import functools

import tensorflow as tf
from absl import logging

from mrnn_tf import decode, schema
from mrnn_tf.config import MAX_PIXELS, MAX_TEXT_WORDS, TOP_K, BeamSearch, EncoderSettings
from mrnn_tf.data import records
from mrnn_tf.errors import UserError
from mrnn_tf.model.mrnn import Image
from mrnn_tf.model_info import KEYS, ModelInfo
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.rows import successes
from mrnn_tf.run import Run
from mrnn_tf.vision import encoders, images
from mrnn_tf.vision.encoders import Encoder
from mrnn_tf.vision.joined import JoinedEncoder

_MISSING = schema.MISSING_LOG_PROB
_DEFAULT_SEARCH = BeamSearch()

Tensors = dict[str, tf.Tensor]


class Inference:
    """A run with its tokeniser and, where there is one, its image encoder.

    Args:
        run: Run.
        encoder: Encoder, whose features the run was trained on; `None` takes features only.
        search: BeamSearch.
        top_k: int. Words that `next_word` returns.
        max_pixels: int. A larger image is not decoded.
        max_text_words: int. A sentence or a prefix of more words has no result.
    """

    name = schema.MODEL

    def __init__(
        self,
        run: Run,
        encoder: Encoder | None = None,
        search: BeamSearch = _DEFAULT_SEARCH,
        top_k: int = TOP_K,
        max_pixels: int = MAX_PIXELS,
        max_text_words: int = MAX_TEXT_WORDS,
    ):
        self.network, self.vocabulary, self.encoder = run.network, run.vocabulary, encoder
        self.search, self.top_k, self.max_pixels = search, top_k, max_pixels
        self.max_text_words, self._run = max_text_words, run

    @functools.cached_property
    def info(self) -> ModelInfo:
        """What the model says of itself."""
        return ModelInfo(self._run, self.settings)

    @property
    def settings(self) -> dict:
        """What is fixed at export."""
        names = ("top_k", "max_pixels", "max_text_words")
        return {**self.search.to_dict(), **{name: getattr(self, name) for name in names}}

    @functools.cached_property
    def scorer(self) -> Scorer | None:
        """Scores sentences by projected images; `None` of a variant that cannot be searched."""
        try:
            return Scorer(self.network.model)
        except UserError as error:
            logging.info("%s The export has no signatures for a vector database.", error)
            return None

    @functools.cached_property
    def _mean(self) -> tf.Variable:
        """The mean projection of the training images, as an export keeps it."""
        with tf.init_scope():  # the first to ask is a function while it is traced
            return tf.Variable(self.network.mean_projection(), trainable=False)

    @property
    def default(self) -> str:
        """The signature that is served by default."""
        return schema.BEAM_DECODE if self.encoder is None else schema.CAPTION

    def best_sentences(
        self,
        features: tf.Tensor,
        search: BeamSearch | None = None,
        n_best: int | None = None,
    ) -> decode.Decoded:
        """What a beam search finds for features [B, D]."""
        image = self.network.model.project_image(zeros_to_nan(features))
        start = decode.begin(self.network.model, image)
        return decode.beam(*start, search or self.search, n_best)

    def beam_decode(self, features: tf.Tensor, prefix: tf.Tensor) -> Tensors:
        """The best sentences of images that begin with some words, and why."""
        ids, is_short = self.vocabulary.short_ids(prefix, self.max_text_words)
        prefix, prefix_ids = tf.where(is_short, prefix, ""), ids.to_tensor(schema.PAD_ID)
        image = self._project(features, is_short)
        start = decode.begin(self.network.model, image, prefix_ids)
        decoded = decode.beam(*start, self.search)
        blank = self.network.blank(tf.shape(features)[0])
        is_word = decoded.ids != schema.PAD_ID
        evidence = decode.evidence(self.network.model, blank, decoded, prefix_ids)
        typed = tf.repeat(tf.strings.strip(prefix)[:, tf.newaxis], self.search.beam, axis=1)
        sentences = self.vocabulary.sentences(decoded.ids)
        captions = tf.strings.strip(tf.strings.join([typed, sentences], " "))
        return {
            schema.CAPTIONS: tf.where(decoded.log_probs > _MISSING, captions, ""),
            schema.LOG_PROBS: decoded.log_probs,
            schema.WORDS: tf.where(is_word, self.vocabulary.lookup(decoded.ids), ""),
            schema.WORD_LOG_PROBS: tf.where(is_word, decoded.word_log_probs, 0.0),
            schema.WORD_EVIDENCE: tf.where(is_word, evidence, 0.0),
        }

    def caption(self, image_bytes: tf.Tensor) -> Tensors:
        """The best sentences of encoded images."""
        return self._captions(self._encode(image_bytes))

    def next_word(self, features: tf.Tensor, prefix: tf.Tensor) -> Tensors:
        """The most probable words after some words; the end token is one of them."""
        ids, is_short = self.vocabulary.short_ids(prefix, self.max_text_words)
        image = self._project(features, is_short)
        start = decode.begin(self.network.model, image, ids.to_tensor(schema.PAD_ID))
        ids, log_probs = decode.next_words(*start, self.top_k)
        return {
            schema.WORDS: tf.where(ids != schema.PAD_ID, self.vocabulary.lookup(ids), ""),
            schema.LOG_PROBS: log_probs,
        }

    def sentence_log_prob(self, features: tf.Tensor, sentences: tf.Tensor) -> Tensors:
        """log P(sentence | image); an unknown word is charged as the word <unk>.

        `num_words` counts the end token, and is 0 where a sentence has too many words.
        """
        ids, is_short = self.vocabulary.short_ids(sentences, self.max_text_words)
        words = _with_end(ids)
        num_words = tf.where(is_short, tf.cast(words.row_lengths(), tf.int32), 0)
        start = decode.begin(self.network.model, self._project(features, is_short))
        # As wide in every batch, so that a server can join the parts of one; padding is not scored.
        shape = [None, self.max_text_words + 1]
        word_log_probs = decode.rescore(*start, words.to_tensor(schema.PAD_ID, shape=shape))
        word_log_probs = tf.ensure_shape(word_log_probs, shape)
        log_prob = tf.reduce_sum(word_log_probs, axis=1)
        is_valid = tf.math.is_finite(log_prob)
        perplexity = tf.exp(-log_prob / tf.cast(num_words, tf.float32))  # Eq. 5
        unknown = tf.cast(ids == schema.UNKNOWN_ID, tf.int32)
        return {
            schema.LOG_PROB: tf.where(is_valid, log_prob, _MISSING),
            schema.PERPLEXITY: tf.where(is_valid, tf.minimum(perplexity, -_MISSING), -_MISSING),
            schema.NUM_WORDS: num_words,
            schema.NUM_UNKNOWN: tf.reduce_sum(unknown, axis=1),
            schema.WORD_LOG_PROBS: tf.where(is_valid[:, tf.newaxis], word_log_probs, 0.0),
        }

    def sentence_vector(self, sentences: tf.Tensor) -> Tensors:
        """First-order vectors [B, M] of sentences at the mean training image: see `expansion`.

        Their inner products with projected images rank these by an estimate of log P(s|I). The
        vector of a sentence without a known word, or with too many words, is zero.
        """
        ids, _ = self.vocabulary.short_ids(sentences, self.max_text_words)
        read = self.scorer.read(_with_end(ids).to_tensor(schema.PAD_ID))
        vectors = self.scorer.expand(read, self._mean).vectors
        is_query = tf.reduce_any(ids > schema.UNKNOWN_ID, axis=1)
        return {schema.VECTORS: tf.where(is_query[:, tf.newaxis], vectors, 0.0)}

    def score_images(self, features: tf.Tensor, sentences: tf.Tensor) -> Tensors:
        """log P [B, S] of every sentence [S] by every image [B, D]."""
        images = self.network.model.project_image(zeros_to_nan(features))["multimodal"]
        shape = tf.shape(features)[0], tf.shape(sentences)[0]
        columns, rows = map(tf.range, shape)
        columns, rows = tf.repeat(columns, shape[1]), tf.tile(rows, shape[:1])
        return {schema.LOG_PROBS: tf.reshape(self._pairs(sentences, rows, images, columns), shape)}

    def score_projections(self, projections: tf.Tensor, sentences: tf.Tensor) -> Tensors:
        """log P [B] of a sentence by each projected image [B, M]; equal sentences are read once."""
        unique, rows = tf.unique(sentences)
        columns = tf.range(tf.shape(projections)[0])
        return {schema.LOG_PROB: self._pairs(unique, rows, projections, columns)}

    def encode_image(self, image_bytes: tf.Tensor) -> Tensors:
        """The features of encoded images, and those refined by the model: g2(V_I I)."""
        features = self._encode(image_bytes)
        encoded = {schema.FEATURES: features}
        if "multimodal" in self.network.model.wiring.image_to:
            encoded[schema.REFINED] = self.network.model.refined(features)
        return encoded

    def caption_examples(self, examples: tf.Tensor) -> Tensors:
        """The best sentences of records: by their features, or else by their encoded images."""
        size = self.network.model.feature_size
        rows, parsed = successes(functools.partial(records.parse_image, size=size), examples)
        features, encoded = parsed
        if self.encoder is not None:
            is_given = tf.reduce_any(features != 0.0, axis=1)
            made = self._encode(tf.where(is_given, b"", encoded))
            features = tf.where(is_given[:, tf.newaxis], features, made)
        shape = [tf.shape(examples)[0], size]
        return self._captions(tf.scatter_nd(rows[:, tf.newaxis], features, shape))

    def _captions(self, features: tf.Tensor) -> Tensors:
        decoded = self.best_sentences(features)
        return {
            schema.CAPTIONS: self.vocabulary.sentences(decoded.ids),
            schema.LOG_PROBS: decoded.log_probs,
        }

    def _pairs(
        self, sentences: tf.Tensor, rows: tf.Tensor, images: tf.Tensor, columns: tf.Tensor
    ) -> tf.Tensor:
        """log P [P] of sentence `rows[p]` of [S] by image `columns[p]` of [I, M]."""
        ids, is_short = self.vocabulary.short_ids(sentences, self.max_text_words)
        read = self.scorer.read(_with_end(ids).to_tensor(schema.PAD_ID))
        log_probs = self.scorer.pairs(read, rows, images, columns)
        is_valid = tf.gather(is_short, rows) & tf.math.is_finite(log_probs)
        return tf.where(is_valid, log_probs, _MISSING)

    def _project(self, features: tf.Tensor, is_read: tf.Tensor) -> Image:
        """Projections of images; NaN where features are zero or the text could not be read."""
        image = self.network.model.project_image(zeros_to_nan(features))
        return {
            entry: tf.where(is_read[:, tf.newaxis], rows, float("nan"))
            for entry, rows in image.items()
        }

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])  # AutoGraph makes its loop
    def _encode(self, image_bytes: tf.Tensor) -> tf.Tensor:
        """Features [B, D], zeros where an image cannot be decoded, by chunks of some windows."""
        encoder, count = self.encoder, tf.shape(image_bytes)[0]

        def prepare(content):
            return encoder.prepare(images.decode(content, self.max_pixels))

        features = tf.zeros([count, encoder.feature_size])
        chunk = max(1, encoders.WINDOWS_AT_ONCE // encoder.crops)
        for first in tf.range(0, count, chunk):
            tf.autograph.experimental.set_loop_options(parallel_iterations=1)
            rows, windows = successes(prepare, image_bytes[first : first + chunk])
            if tf.size(rows) > 0:
                made = encoder.encode(windows)
                features = tf.tensor_scatter_nd_update(features, first + rows[:, tf.newaxis], made)
        return features

    def signatures(self) -> dict[str, tf.types.experimental.ConcreteFunction]:
        """The functions that a SavedModel offers, by name."""
        functions = {name: self.trace(name) for name in self.methods}
        return {**functions, schema.SERVING_DEFAULT: functions[self.default]}

    def trace(self, name: str) -> tf.types.experimental.ConcreteFunction:
        """The function of one signature."""
        method, *inputs = self.methods[name]
        return tf.function(method, inputs).get_concrete_function()

    @functools.cached_property
    def methods(self) -> dict[str, tuple]:
        """What the signatures are traced from, by name: a method, and the forms of its inputs."""
        model = self.network.model
        features = tf.TensorSpec([None, model.feature_size], tf.float32, schema.FEATURES)
        prefix, sentences, image_bytes, examples = (
            tf.TensorSpec([None], tf.string, name)
            for name in (schema.PREFIX, schema.SENTENCES, schema.IMAGE_BYTES, schema.EXAMPLES)
        )
        methods = {
            schema.BEAM_DECODE: (self.beam_decode, features, prefix),
            schema.NEXT_WORD: (self.next_word, features, prefix),
            schema.SENTENCE_LOG_PROB: (self.sentence_log_prob, features, sentences),
            schema.CAPTION_EXAMPLES: (self.caption_examples, examples),
            schema.MODEL_INFO: (self.info.lookup, KEYS),
        }
        if self.encoder is not None:
            methods[schema.CAPTION] = self.caption, image_bytes
            methods[schema.ENCODE_IMAGE] = self.encode_image, image_bytes
        if self.scorer is not None:
            size = [None, model.multimodal_size]
            projections = tf.TensorSpec(size, tf.float32, schema.PROJECTIONS)
            methods[schema.SCORE_IMAGES] = self.score_images, features, sentences
            methods[schema.SCORE_PROJECTIONS] = self.score_projections, projections, sentences
            if tf.reduce_any(self.network.mean_features != 0.0):
                methods[schema.SENTENCE_VECTOR] = self.sentence_vector, sentences
            else:
                told = "The run has no mean image: the export has no signature %s."
                logging.warning(told, schema.SENTENCE_VECTOR)
        return methods

    def tracked(self) -> tf.Module:
        """What a SavedModel must own.

        The variables themselves and not the Keras models around them: of those, `save` would write
        copies, which TensorFlow's Python resolves, but a session, as TF Serving has, does not.
        """
        models = [*self.network.models, *(self.encoder.models if self.encoder else [])]
        root = tf.Module(name=self.name)
        root.weights = [variable.value for model in models for variable in model.variables]
        for name, mean in self.network.means.items():
            setattr(root, name, mean)
        root.vocabulary, root.info = self.vocabulary, self.info
        if self.scorer is not None:
            root.scorer = {**self.scorer.arrays, "mean": self._mean}
        return root


def _with_end(ids: tf.RaggedTensor) -> tf.RaggedTensor:
    """The words of sentences, each followed by the end token."""
    ends = tf.fill([ids.nrows(), 1], schema.END_ID)
    return tf.concat([ids, tf.RaggedTensor.from_tensor(ends)], axis=1)


def zeros_to_nan(features: tf.Tensor) -> tf.Tensor:
    """Features [B, D] in which an all-zero row, an undecodable image, is NaN."""
    is_zero = tf.reduce_all(features == 0.0, axis=1, keepdims=True)
    return tf.where(is_zero, float("nan"), features)


def attached_encoder(
    run: Run, name: str | None = None, weights: str | None = None, **settings: str | int
) -> Encoder | JoinedEncoder | None:
    """The encoder of a run's features, or the named one; `None` where none is known.

    `settings` are those of `encoders.create`, by default those of the run's features.
    """
    if run.network.encoder is not None:
        if name or weights:
            raise UserError("`encoder`: the run has trained its own encoder; leave it out.")
        return run.network.encoder.folded()
    known = run.config.encoder
    if name is None and "name" not in known:
        if weights:
            raise UserError("`encoder_weights`: `encoder` must name the encoder that they are of.")
        logging.info("The run has precomputed features: no image encoder is attached.")
        return None
    names = [setting.name for setting in dataclasses.fields(EncoderSettings)]
    settings = {name: known[name] for name in names if name in known} | settings
    encoder = encoders.create(name or known["name"], weights, known.get("crops", 1), **settings)
    if encoder.feature_size != run.config.feature_size:
        raise UserError(
            f"`encoder` {encoder.name} makes {encoder.feature_size} features, but the run was "
            f"trained on {run.config.feature_size} of {known['identity']}."
        )
    if "name" in known and encoder.identity != known["identity"]:
        raise UserError(
            f"`encoder_weights`: the encoder would be {encoder.identity}, but the run was trained "
            f"on {known['identity']}."
        )
    if "name" not in known:
        logging.warning(
            "Attaching %s to %s: that these are its features cannot be checked.",
            encoder.identity,
            known["identity"],
        )
    return encoder.folded()

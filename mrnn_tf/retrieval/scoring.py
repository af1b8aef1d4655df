"""log P(s|I) of pairs of sentences and images: of all of them, or only of those that can matter.

The image enters at the multimodal layer only, so a sentence is read once for all images and an
image is projected once for all words: what remains for every word and image is one row of the
softmax. Of many pairs those are scored whose upper bounds (see `expansion`) reach their thresholds.

The methods take NumPy arrays or tensors and are traced into the servable of an index, but for
`project` and `matrix`.
"""

import numpy as np
import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.errors import UserError
from mrnn_tf.model.layers import scaled_tanh
from mrnn_tf.model.mrnn import MRNN
from mrnn_tf.retrieval import expansion as expansions
from mrnn_tf.retrieval import sentences as reading
from mrnn_tf.retrieval import softmax
from mrnn_tf.retrieval.expansion import Expansion, LocalExpansion
from mrnn_tf.retrieval.sentences import EncodedSentences

_FREQUENT = 256  # words that a rough bound sums
_COLUMNS = 512  # images that are bounded at once
ROUNDING = 1e-3  # between two ways to one score: a bound that misses by less still counts
_FLOATS = tf.TensorSpec([None, None])
_INTS, _IDS = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, None], tf.int32)
_SENTENCES = EncodedSentences(tf.TensorSpec([None, None, None]), _IDS)
_CUBE, _RESTS = tf.TensorSpec([None] * 3), tf.TensorSpec([None] * 4)
_LOCAL = LocalExpansion(
    *(_INTS, _FLOATS, _INTS, _FLOATS, _CUBE, _IDS, _RESTS, _CUBE, _FLOATS, softmax.FLOATS)
)
_PAIRS = tf.TensorSpec([None, 2], tf.int32)


class Scorer:
    """Scores sentences by images.

    Attributes:
        readout: softmax.Readout.
        arrays: dict of the variables that are not the model's own: the kernel where it is computed.
    """

    def __init__(self, model: MRNN):
        reading.check_searchable(model)
        self.model = model
        kernel, bias = model.readout()
        self.arrays = {}
        if not isinstance(kernel, tf.Variable):  # from tied weights
            kernel = self.arrays["kernel"] = tf.Variable(kernel, trainable=False)
        self.readout = softmax.Readout(kernel, bias)

    def project(self, features: np.ndarray, batch_size: int = 1024) -> np.ndarray:
        """a = V_I I [I, M] of images [I, D]."""
        wanted = self.model.feature_size
        if features.ndim != 2 or features.shape[1] != wanted:
            raise UserError(
                f"`features` must be an array [images, {wanted}]; got {list(features.shape)}."
            )
        batches = np.array_split(features, range(batch_size, len(features), batch_size))
        return np.concatenate([self.model.project_image(batch)["multimodal"] for batch in batches])

    @tf.function(autograph=False, input_signature=[_IDS])
    def read(self, words: tf.Tensor) -> EncodedSentences:
        """Reads sentences int [S, T], as `sentences.pad` makes them."""
        return reading.read(self.model, words)

    @tf.function(autograph=False, input_signature=[_SENTENCES, tf.TensorSpec([None])])
    def expand(self, sentences: EncodedSentences, mean: tf.Tensor) -> Expansion:
        """Expands sentences at the mean image [M]."""
        return expansions.expand(self.readout, sentences, mean)

    @tf.function(autograph=False, input_signature=[_SENTENCES, _FLOATS])
    def expand_around(self, sentences: EncodedSentences, points: tf.Tensor) -> LocalExpansion:
        """Expands sentences at points [C, M], for bounds."""
        return expansions.expand_around(self.readout, sentences, points)

    @tf.function(autograph=False, input_signature=[_SENTENCES, _INTS, _FLOATS, _INTS])
    def pairs(
        self, sentences: EncodedSentences, rows: tf.Tensor, images: tf.Tensor, columns: tf.Tensor
    ) -> tf.Tensor:
        """log P [P] of sentence `rows[p]` by image `columns[p]` of images a [I, M]."""
        log_probs = self.word_log_probs(sentences, rows, images, columns)
        return tf.cast(tf.reduce_sum(tf.cast(log_probs, tf.float64), axis=1), tf.float32)

    @tf.function(autograph=False, input_signature=[_SENTENCES, _INTS, _FLOATS, _INTS])
    def word_log_probs(
        self, sentences: EncodedSentences, rows: tf.Tensor, images: tf.Tensor, columns: tf.Tensor
    ) -> tf.Tensor:
        """As `pairs`, of every word [P, T], zero at padding."""
        words = tf.gather(sentences.words, rows)
        at = tf.where(words != schema.PAD_ID)
        pair, t = tf.unstack(tf.cast(at, tf.int32), axis=1)
        place, image = tf.stack([tf.gather(rows, pair), t], axis=1), tf.gather(columns, pair)

        def score(numbers: tf.Tensor) -> tf.Tensor:
            a = tf.gather(images, tf.gather(image, numbers))
            here = tf.gather(place, numbers)
            h, word = tf.gather_nd(sentences.h, here), tf.gather_nd(sentences.words, here)
            return self.readout.log_probs(h, a, word)

        log_probs = softmax.in_blocks(score, tf.shape(pair)[0])
        return tf.scatter_nd(at, log_probs, tf.shape(words, tf.int64))

    @tf.function(autograph=False, input_signature=[_SENTENCES, _IDS, _INTS, _FLOATS, _INTS])
    def shared(
        self,
        sentences: EncodedSentences,
        places: tf.Tensor,
        first: tf.Tensor,
        images: tf.Tensor,
        columns: tf.Tensor,
    ) -> tf.Tensor:
        """log P [P] of the words at `places` [P, 2], where several share a softmax row.

        Row r is that of image `columns[r]` of images a [I, M] and of the places from `first[r]` up
        to `first[r + 1]` [R + 1], before which the same words stand.
        """
        words = tf.gather_nd(sentences.words, places)

        def score(rows: tf.Tensor) -> tf.Tensor:
            begin, end = tf.gather(first, rows), tf.gather(first, rows + 1)
            a = tf.gather(images, tf.gather(columns, rows))
            h = tf.gather_nd(sentences.h, tf.gather(places, begin))
            logits = self.readout.logits(scaled_tanh(h + a))
            row = tf.repeat(tf.range(tf.size(rows)), end - begin)
            own = tf.gather_nd(logits, tf.stack([row, words[begin[0] : end[-1]]], axis=1))
            return own - tf.gather(tf.reduce_logsumexp(logits, axis=-1), row)

        return softmax.in_blocks(score, tf.size(columns))

    @tf.function(autograph=False, input_signature=[_SENTENCES, tf.TensorSpec([None])])
    def rough_bounds(self, sentences: EncodedSentences, image: tf.Tensor) -> tf.Tensor:
        """The highest log P [S] of sentences by an image a [M], without an expansion.

        The sum of the softmax is at least that over the most frequent words, which a vocabulary
        begins with, and the word itself.
        """
        at = tf.where(sentences.words != schema.PAD_ID)
        kernel, bias = self.readout.kernel[:, :_FREQUENT], self.readout.bias[:_FREQUENT]
        word_vectors = tf.transpose(self.readout.kernel)

        def bound(numbers: tf.Tensor) -> tf.Tensor:
            here = tf.gather(at, numbers)
            words = tf.gather_nd(sentences.words, here)
            m = scaled_tanh(tf.gather_nd(sentences.h, here) + image)
            own = tf.reduce_sum(m * tf.gather(word_vectors, words), axis=1)
            own += tf.gather(self.readout.bias, words)
            is_rare = words >= tf.shape(bias)[0]
            rare = tf.where(is_rare, own, -np.inf)[:, tf.newaxis]
            logits = tf.concat([tf.matmul(m, kernel) + bias, rare], axis=1)
            return own - tf.reduce_logsumexp(logits, axis=1)

        values = softmax.in_blocks(bound, tf.shape(at)[0])
        return tf.math.segment_sum(values, at[:, 0])

    @tf.function(autograph=False, input_signature=[_SENTENCES, _LOCAL, _FLOATS, _FLOATS])
    def at_least(
        self,
        sentences: EncodedSentences,
        expansion: LocalExpansion,
        images: tf.Tensor,
        thresholds: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Every log P(s|I) [S, I] that reaches its threshold [S, I], minus infinity elsewhere.

        Returns the scores and the number of softmax rows that they took. A NaN in images, weights
        or thresholds raises `tf.errors.InvalidArgumentError`.
        """
        # A comparison with NaN would drop a pair silently.
        is_number = tf.logical_not(tf.reduce_any(tf.math.is_nan(thresholds)))
        tf.debugging.Assert(is_number, ["A threshold of log P(s|I) is NaN."])

        def of_sentence(numbers: tf.Tensor) -> tf.Tensor:
            row = numbers[0]
            columns = self.reaching(expansion.of(row), images, thresholds[row])
            return tf.stack([tf.fill(tf.shape(columns), row), columns], axis=1)

        pairs = softmax.in_blocks(of_sentence, tf.shape(thresholds)[0], _PAIRS, 1)
        rows, columns = tf.unstack(pairs, axis=1)
        scores = self.pairs(sentences, rows, images, columns)
        scores = tf.where(scores >= tf.gather_nd(thresholds, pairs), scores, -np.inf)
        missing = tf.fill(tf.shape(thresholds), -np.inf)
        used = tf.math.count_nonzero(tf.gather(sentences.words, rows), dtype=tf.int32)
        return tf.tensor_scatter_nd_update(missing, pairs, scores), used

    def reaching(
        self, expansion: LocalExpansion, images: tf.Tensor, thresholds: tf.Tensor
    ) -> tf.Tensor:
        """The images [P] of a [I, M] by which a sentence can reach its threshold [I], or scalar.

        The upper bounds of every level are computed of what those before let through.
        """
        columns = tf.range(tf.shape(images)[0])
        thresholds = tf.broadcast_to(thresholds - ROUNDING, tf.shape(columns))
        for level in range(len(expansions.LEVELS)):

            def bound(numbers: tf.Tensor, level=level, columns=columns) -> tf.Tensor:
                own = tf.gather(columns, numbers)[tf.newaxis]
                return expansions.bounds(expansion, images, own, level)[0]

            highest = softmax.in_blocks(bound, tf.size(columns), at_once=_COLUMNS)
            highest = tf.debugging.check_numerics(highest, "an upper bound of log P(s|I)")
            columns, thresholds = columns[highest >= thresholds], thresholds[highest >= thresholds]
        return columns

    def matrix(self, sentences: EncodedSentences, images: np.ndarray) -> np.ndarray:
        """log P [S, I] of every sentence by every image a [I, M]."""
        count, parts = len(sentences.words), []
        for a in np.array_split(images, range(softmax.ROWS, len(images), softmax.ROWS)):
            rows, columns = np.repeat(np.arange(count), len(a)), np.tile(np.arange(len(a)), count)
            parts.append(tf.reshape(self.pairs(sentences, rows, a, columns), [count, len(a)]))
        return np.concatenate(parts, axis=1)

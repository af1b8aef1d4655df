"""log P(s|I) of pairs of sentences and images: of all of them, or only of those that can matter.

The image enters at the multimodal layer only, so a sentence is read once for all images and an
image is projected once for all words: what remains for every word and image is one row of the
softmax. log P(s|I) is a sum over words whose h are known before an image is touched, so the words
may be summed in any order, and a pair is dropped as soon as an upper bound misses its threshold.

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
from mrnn_tf.retrieval.expansion import Expansion
from mrnn_tf.retrieval.sentences import EncodedSentences

ROUNDING = 1e-3  # between two ways to one score: a bound that misses by less still counts
_FLOATS = tf.TensorSpec([None, None])
_INTS, _IDS = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, None], tf.int32)
_SENTENCES = EncodedSentences(tf.TensorSpec([None, None, None]), _IDS)
_EXPANSION = Expansion(*_SENTENCES, tf.TensorSpec([None, None, None]), _FLOATS, _FLOATS, _FLOATS)


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

    @tf.function(autograph=False, input_signature=[_SENTENCES, _INTS, _FLOATS, _INTS])
    def pairs(
        self, sentences: EncodedSentences, rows: tf.Tensor, images: tf.Tensor, columns: tf.Tensor
    ) -> tf.Tensor:
        """log P [P] of sentence `rows[p]` by image `columns[p]` of images a [I, M]."""
        pair, t = tf.unstack(tf.where(tf.gather(sentences.words, rows) != schema.PAD_ID), axis=1)
        place = tf.stack([tf.gather(tf.cast(rows, tf.int64), pair), t], axis=1)
        image = tf.gather(columns, pair)

        def score(numbers: tf.Tensor) -> tf.Tensor:
            a = tf.gather(images, tf.gather(image, numbers))
            return self._log_probs(sentences, tf.gather(place, numbers), a)

        log_probs = softmax.in_blocks(score, tf.shape(pair)[0])
        # Every sentence has a word, the end token: no pair is left out.
        return tf.cast(tf.math.segment_sum(tf.cast(log_probs, tf.float64), pair), tf.float32)

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

    @tf.function(autograph=False, input_signature=[_EXPANSION, _FLOATS, _FLOATS])
    def at_least(
        self, expansion: Expansion, images: tf.Tensor, thresholds: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Every log P(s|I) [S, I] that reaches its threshold [S, I], minus infinity elsewhere.

        Returns the scores and the number of softmax rows that they took. A NaN in images, weights
        or thresholds raises `tf.errors.InvalidArgumentError`.
        """
        bounds = expansions.bounds(expansion, images)
        bounds = tf.debugging.check_numerics(bounds, "an upper bound of log P(s|I)")
        can_reach = bounds >= thresholds - ROUNDING
        pairs = tf.where(can_reach | tf.math.is_nan(thresholds))  # NaN is refused with the pairs
        rows, columns = tf.unstack(tf.cast(pairs, tf.int32), axis=1)
        least = tf.gather_nd(thresholds, pairs)
        scores, used = self.pairs_at_least(expansion, rows, images, columns, least)
        missing = tf.fill(tf.shape(thresholds), -np.inf)
        return tf.tensor_scatter_nd_update(missing, pairs, scores), used

    @tf.function(
        autograph=False, input_signature=[_EXPANSION, _INTS, _FLOATS, _INTS, tf.TensorSpec([None])]
    )
    def pairs_at_least(
        self,
        expansion: Expansion,
        rows: tf.Tensor,
        images: tf.Tensor,
        columns: tf.Tensor,
        thresholds: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """As `at_least`, log P [P] of sentence `rows[p]` by image `columns[p]`."""
        # The words that surprise the mean image most come first, padding last.
        order = tf.argsort(expansion.log_probs, axis=1, stable=True)

        def score(numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            a = tf.gather(images, tf.gather(columns, numbers))
            least = tf.gather(thresholds, numbers)
            return self._word_by_word(expansion, order, tf.gather(rows, numbers), a, least)

        # A comparison with NaN would drop a pair silently.
        is_number = tf.logical_not(tf.reduce_any(tf.math.is_nan(thresholds)))
        tf.debugging.Assert(is_number, ["A threshold of log P(s|I) is NaN."])
        # Most pairs are dropped early: more of them fill the blocks of softmax rows.
        scores, used = softmax.in_blocks(
            score, tf.shape(rows)[0], (softmax.FLOATS, _INTS), 4 * softmax.ROWS
        )
        return scores, tf.reduce_sum(used)

    def matrix(self, sentences: EncodedSentences, images: np.ndarray) -> np.ndarray:
        """log P [S, I] of every sentence by every image a [I, M]."""
        count, parts = len(sentences.words), []
        for a in np.array_split(images, range(softmax.ROWS, len(images), softmax.ROWS)):
            rows, columns = np.repeat(np.arange(count), len(a)), np.tile(np.arange(len(a)), count)
            parts.append(tf.reshape(self.pairs(sentences, rows, a, columns), [count, len(a)]))
        return np.concatenate(parts, axis=1)

    def _word_by_word(self, expansion, order, rows, images, least) -> tuple[tf.Tensor, tf.Tensor]:
        """log P [P] of sentence `rows[p]` by image p where it reaches `least`; softmax rows [P]."""
        bounds = expansions.word_bounds(expansion, rows, images)
        lengths = tf.gather(tf.math.count_nonzero(expansion.words, 1, dtype=tf.int32), rows)
        needed = tf.cast(least, tf.float64)

        def hopeful(rank: tf.Tensor, alive: tf.Tensor, highest: tf.Tensor) -> tf.Tensor:
            """The pairs that may reach their thresholds and have words that are not scored yet."""
            reaches = tf.gather(highest, alive) >= tf.gather(needed, alive) - ROUNDING
            return tf.boolean_mask(alive, reaches & (tf.gather(lengths, alive) > rank))

        def score_a_word(rank, alive, highest, used):
            row = tf.gather(rows, alive)
            t = tf.gather(order[:, rank], row)
            place = tf.stack([row, t], axis=1)

            def score(numbers: tf.Tensor) -> tf.Tensor:
                a = tf.gather(images, tf.gather(alive, numbers))
                return self._log_probs(expansion, tf.gather(place, numbers), a)

            exact = softmax.in_blocks(score, tf.shape(alive)[0])
            change = exact - tf.gather_nd(bounds, tf.stack([alive, t], axis=1))
            at = alive[:, tf.newaxis]
            highest = tf.tensor_scatter_nd_add(highest, at, tf.cast(change, tf.float64))
            used = tf.tensor_scatter_nd_add(used, at, tf.ones_like(alive))
            return rank + 1, hopeful(rank + 1, alive, highest), highest, used

        highest = tf.reduce_sum(tf.cast(bounds, tf.float64), axis=1)
        alive = hopeful(0, tf.range(tf.shape(rows)[0]), highest)
        state = 0, alive, highest, tf.zeros_like(rows)
        _, _, highest, used = tf.while_loop(
            lambda _, alive, *__: tf.size(alive) > 0, score_a_word, state, parallel_iterations=1
        )
        # What was dropped has an upper bound below its threshold.
        return tf.where(highest >= needed, tf.cast(highest, tf.float32), -np.inf), used

    def _log_probs(self, sentences, place, images) -> tf.Tensor:
        """log P [R] of the words at `place` [R, 2] by images a [R, M]."""
        h, words = tf.gather_nd(sentences.h, place), tf.gather_nd(sentences.words, place)
        return self.readout.log_probs(h, images, words)

"""What a training step makes smaller.

An objective turns a batch into `Terms`: a sum to differentiate and what it is divided by, and a
total and a count whose ratio tells how training goes. All are sums over a replica's part of the
global batch, so that replicas add up.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import tensorflow as tf

from mrnn_tf import decode, schema, text
from mrnn_tf.config import BeamSearch
from mrnn_tf.consensus.ngrams import Corpus
from mrnn_tf.consensus.similarity import CiderD
from mrnn_tf.model import loss
from mrnn_tf.run import Network
from mrnn_tf.text import Vocabulary


class Terms(NamedTuple):
    """Sums over a part of a batch; the gradient is that of `cost / count` over all parts."""

    cost: tf.Tensor  # what is made smaller
    total: tf.Tensor  # what is measured
    count: tf.Tensor  # what both are divided by: words, or images
    words: tf.Tensor  # that the batch holds, which tell the speed


class Likelihood:
    """The cost of the paper (Eq. 6): bits a word."""

    def terms(self, network: Network, batch: dict[str, tf.Tensor]) -> Terms:
        logits = network.logits(batch, training=True)
        bits, words = loss.word_costs(logits, batch[schema.TARGET_IDS])
        return Terms(bits, bits, words, words)

    def measured(self, mean: float) -> dict[str, float]:
        perplexity = min(loss.perplexity(min(mean, 1e3), 1.0), 1e30)
        return {"perplexity": perplexity, "cost": mean}


class ExpectedCider:
    """The expected CIDEr-D of the captions that a beam search finds.

    Minimum risk training (Shen et al. 2016): among the sentences of an image, renormalised to sum
    to one, probability moves to those that score above the others by the reference captions. The
    end token counts as a word: without it, sentences that break off ("a man in a") would score as
    well as whole ones. Of the dropouts only that of the features acts, on search and score alike.

    The reference captions of all training images are the `corpus`, which weighs the words. A search
    of `width` finds as many sentences of an image.
    """

    def __init__(
        self, corpus: Iterable[list[str]], vocabulary: Vocabulary, width: int, max_words: int = 20
    ):
        with tf.device("CPU"):  # sentences are strings, which no GPU takes
            self._cider = CiderD(Corpus.of(corpus, end=schema.END))
        self._vocabulary, self._search = vocabulary, BeamSearch(beam=width, max_words=max_words)

    def terms(self, network: Network, batch: dict[str, tf.Tensor]) -> Terms:
        model, width = network.model, self._search.beam
        image = model.project_image(network.features(batch), training=True)
        n_best = decode.beam(*decode.begin(model, image), self._search)
        rewards = self._rewards(self._vocabulary.sentences(n_best.ids), batch[schema.CAPTIONS])
        rewards = tf.ensure_shape(rewards, [None, width])

        ids = tf.reshape(n_best.ids, [-1, n_best.ids.shape[-1]])
        ids = ids[:, : tf.reduce_max(tf.math.count_nonzero(ids, axis=1))]
        inputs = tf.pad(ids[:, :-1], [[0, 0], [1, 0]], constant_values=schema.START_ID)
        image = {entry: tf.repeat(a, width, axis=0) for entry, a in image.items()}
        logits = model.logits_from(model.word_part(inputs, image), image)
        bits, words = loss.sentence_costs(logits, ids)
        log_probs = tf.reshape(-math.log(2.0) * bits, [-1, width])
        log_probs = tf.where(n_best.log_probs > schema.MISSING_LOG_PROB, log_probs, -1e9)
        expected = tf.reduce_sum(tf.nn.softmax(log_probs) * rewards)
        images = tf.cast(tf.shape(rewards)[0], tf.float32)
        return Terms(-expected, expected, images, tf.reduce_sum(words))

    def measured(self, mean: float) -> dict[str, float]:
        return {"reward": mean}

    def _rewards(self, sentences: tf.Tensor, captions: tf.Tensor) -> tf.Tensor:
        """CIDEr-D float32 [B, N] of sentences by raw captions [B, R]; empty ones do not count."""
        references = text.tokenized(captions)
        is_reference = tf.cast(references != "", tf.float64)[:, tf.newaxis]
        texts = [tf.strings.join([words, f" {schema.END}"]) for words in (sentences, references)]
        with tf.device("CPU"):
            total = tf.reduce_sum(self._cider.to_sentences(*texts) * is_reference, axis=2)
        rewards = tf.math.divide_no_nan(total, tf.reduce_sum(is_reference, axis=2))
        return tf.cast(rewards, tf.float32)

"""What a training step makes smaller.

An objective turns a batch into `Terms`: a sum to differentiate, the words that it is divided by,
and a total and a count whose ratio tells how training goes. All are sums over a replica's part of
the global batch, so that replicas add up.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from mrnn_tf import decode, schema, text
from mrnn_tf.metrics.captions import tokenize
from mrnn_tf.metrics.cider import CiderD
from mrnn_tf.model import loss
from mrnn_tf.run import Network
from mrnn_tf.text import Vocabulary


class Terms(NamedTuple):
    """Sums over a part of a batch; the gradient is that of `cost / words` over all parts."""

    cost: tf.Tensor
    words: tf.Tensor
    total: tf.Tensor
    count: tf.Tensor


class Likelihood:
    """The cost of the paper (Eq. 6): bits a word."""

    def __init__(self, label_smoothing: float = 0.0):
        self._label_smoothing = label_smoothing

    def terms(self, network: Network, batch: dict[str, tf.Tensor], step: tf.Tensor) -> Terms:
        del step
        logits = network.logits(batch, training=True)
        bits, words = loss.word_costs(logits, batch[schema.TARGET_IDS], self._label_smoothing)
        return Terms(bits, words, bits, words)

    def measured(self, mean: float) -> dict[str, float]:
        perplexity = min(loss.perplexity(min(mean, 1e3), 1.0), 1e30)
        return {"perplexity": perplexity, "cost": mean}


class ExpectedCider:
    """The expected CIDEr-D of captions that the model draws, by the captions of people.

    Self-critical sequence training (Rennie et al. 2017): a drawn caption becomes more probable as
    far as it scores above the other captions drawn for the same image. The end sign counts as a
    word: without it, sentences that break off ("a man in a") would score as well as whole ones.

    Args:
        corpus: raw captions of every training image, for the document frequencies.
        vocabulary: the run's own.
        samples: int, at least 2. Captions drawn for an image.
        seed: int.
        max_words: int. The longest caption drawn.
    """

    def __init__(
        self,
        corpus: Iterable[Sequence[str]],
        vocabulary: Vocabulary,
        samples: int,
        seed: int,
        max_words: int = 20,
    ):
        corpus = list(corpus)
        words = iter(tokenize(itertools.chain.from_iterable(corpus)))
        self._cider = CiderD([_ended(next(words)) for _ in captions] for captions in corpus)
        self._vocabulary = vocabulary
        self._samples, self._seed, self._max_words = samples, seed, max_words

    def terms(self, network: Network, batch: dict[str, tf.Tensor], step: tf.Tensor) -> Terms:
        model, features = network.model, network.features(batch)
        replica = tf.distribute.get_replica_context()
        draw = tf.cast(step, tf.int32) * replica.num_replicas_in_sync
        draw += replica.replica_id_in_sync_group
        drawn = decode.sample(
            *decode.begin(model, model.project_image(features), copies=self._samples),
            seed=self._seed + draw,
            copies=self._samples,
            max_words=self._max_words,
        )
        sentences = self._vocabulary.sentences(drawn.ids)
        references = text.tokenize(tf.reshape(batch["captions"], [-1]))
        references = tf.strings.reduce_join(references, axis=-1, separator=" ")
        references = tf.reshape(references, tf.shape(batch["captions"]))
        rewards = tf.numpy_function(self._rewards, [sentences, references], tf.float32)
        rewards = tf.ensure_shape(rewards, [None, self._samples])
        others = (tf.reduce_sum(rewards, axis=1, keepdims=True) - rewards) / (self._samples - 1)

        ids = tf.reshape(drawn.ids, [-1, self._max_words + 1])
        ids = ids[:, : tf.reduce_max(tf.math.count_nonzero(ids, axis=1))]
        logits = network.model(
            {
                schema.FEATURES: tf.repeat(features, self._samples, axis=0),
                schema.WORD_IDS: tf.pad(
                    ids[:, :-1], [[0, 0], [1, 0]], constant_values=schema.START_ID
                ),
            },
            training=True,
        )
        bits, words = loss.sentence_costs(logits, ids)
        return Terms(
            tf.reduce_sum(tf.reshape(rewards - others, [-1]) * bits),
            tf.reduce_sum(words),
            tf.reduce_sum(rewards),
            tf.cast(tf.size(rewards), tf.float32),
        )

    def measured(self, mean: float) -> dict[str, float]:
        return {"reward": mean}

    def _rewards(self, sentences: np.ndarray, references: np.ndarray) -> np.ndarray:
        rewards = np.zeros(sentences.shape, np.float32)
        for row, captions in enumerate(references):
            people = [self._cider.vector(_ended(each.decode())) for each in captions if each]
            for place, sentence in enumerate(sentences[row]):
                own = self._cider.vector(_ended(sentence.decode()))
                scores = [self._cider.similarity(own, each) for each in people]
                rewards[row, place] = np.mean(scores) if scores else 0.0
        return rewards


def _ended(sentence: str) -> str:
    return f"{sentence} {schema.END}"

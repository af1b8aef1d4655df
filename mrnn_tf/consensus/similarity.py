"""How similar sentences are to captions, all pairs of an image at once.

Args of every similarity: the `Corpus` of captions, which gives CIDEr its document frequencies.

>>> corpus = Corpus.of([["A dog runs.", "the dog"], ["a cat"]])
>>> Bleu(corpus).to_captions(corpus.sentences(["a dog"]), corpus.rows([0]))
array([[0.48888889, 0.25      ]])
"""

import functools

import numpy as np
import scipy.sparse

from mrnn_tf.consensus.ngrams import ORDERS, Corpus, Sentences
from mrnn_tf.errors import UserError

CIDER_SIGMA = 6.0
CIDER_SCALE = 10.0
NO_MATCH = 0.1  # what nltk's smoothing method 1 takes instead of 0


class Bleu:
    """The authors' BLEU: the mean of the F1 of n-grams, n = 1 to 4.

    Theirs is 0 wherever a sentence has fewer than four words, by the wrong index in a loop. Here an
    order counts wherever one of the two sentences has n-grams of it: the F1 of a sentence of two
    words and one of three is the mean of three orders, the last of them 0.
    """

    def __init__(self, corpus: Corpus):
        self.corpus = corpus

    def to_captions(self, sentences: Sentences, rows: np.ndarray) -> np.ndarray:
        """The similarity of sentences to captions of the corpus: [sentences, captions]."""
        counts = self.corpus.counts_of(sentences.nodes, rows)
        return self._of_counts(sentences, counts, self.corpus.lengths[rows])

    def to_each_other(self, sentences: Sentences) -> np.ndarray:
        """The similarity of every sentence to every one: [sentences, sentences]."""
        counts = scipy.sparse.csr_array(sentences.counts)
        return self._of_counts(sentences, counts, sentences.lengths)

    def _of_counts(
        self, sentences: Sentences, counts: scipy.sparse.csr_array, lengths: np.ndarray
    ) -> np.ndarray:
        totals = _totals(sentences.lengths)[:, :, np.newaxis] + _totals(lengths)[:, np.newaxis]
        f1 = 2 * _shared(sentences, counts) / np.maximum(totals, 1)
        return f1.sum(axis=0) / np.maximum(np.count_nonzero(totals, axis=0), 1)


class SentenceBleu(Bleu):
    """BLEU of one sentence by one reference, as nltk has it with its smoothing method 1."""

    def _of_counts(self, sentences, counts, lengths):
        shared = _shared(sentences, counts)
        totals = np.maximum(_totals(sentences.lengths), 1)[:, :, np.newaxis]
        precisions = np.where(shared > 0, shared, NO_MATCH) / totals
        own = np.maximum(sentences.lengths, 1)[:, np.newaxis]
        brevity = np.exp(np.minimum(1 - lengths / own, 0.0))
        return np.where(shared[0] > 0, brevity * np.exp(np.log(precisions).mean(axis=0)), 0.0)


class Cider:
    """CIDEr-D, 0 to 10, as pycocoevalcap has it but for the frequencies, which are the corpus's."""

    def __init__(self, corpus: Corpus):
        if len(corpus.images) < 2:
            raise UserError("`corpus` must hold an image at least: CIDEr needs its frequencies.")
        self.corpus = corpus

    def to_captions(self, sentences: Sentences, rows: np.ndarray) -> np.ndarray:
        """The similarity of sentences to captions of the corpus: [sentences, captions]."""
        counts = self.corpus.counts_of(sentences.nodes, rows)
        return self._of_counts(sentences, counts, self.corpus.lengths[rows], self.norms[:, rows])

    def to_each_other(self, sentences: Sentences) -> np.ndarray:
        """The similarity of every sentence to every one: [sentences, sentences]."""
        norms = self._own_norms(sentences)
        counts = scipy.sparse.csr_array(sentences.counts)
        return self._of_counts(sentences, counts, sentences.lengths, norms)

    @functools.cached_property
    def weights(self) -> np.ndarray:
        """The inverse document frequency of every n-gram; the last is that of an unknown one."""
        return np.log(len(self.corpus.images) - 1) - np.log(np.append(self.corpus.frequencies, 1.0))

    @functools.cached_property
    def norms(self) -> np.ndarray:
        """The length of the tf-idf vector of every order of every caption: [4, C]."""
        squares = self.corpus.counts.astype(float).power(2)
        weights = np.square(self.weights[:-1])
        orders = [np.where(self.corpus.orders == n + 1, weights, 0.0) for n in range(ORDERS)]
        return np.sqrt(np.stack([squares @ each for each in orders]))

    def _own_norms(self, sentences: Sentences) -> np.ndarray:
        squares = np.square(sentences.counts * self.weights[sentences.nodes])
        return np.sqrt([squares[:, sentences.orders == n + 1].sum(axis=1) for n in range(ORDERS)])

    def _of_counts(
        self,
        sentences: Sentences,
        counts: scipy.sparse.csr_array,
        lengths: np.ndarray,
        norms: np.ndarray,
    ) -> np.ndarray:
        shared = _shared(sentences, counts, np.square(self.weights[sentences.nodes]))
        both = self._own_norms(sentences)[:, :, np.newaxis] * norms[:, np.newaxis]
        cosines = np.divide(shared, both, out=np.zeros_like(shared), where=both > 0)
        # What the original calls the length is the number of bigrams.
        bigrams = _totals(sentences.lengths)[1][:, np.newaxis] - _totals(lengths)[1]
        near = np.exp(-np.square(bigrams) / (2 * CIDER_SIGMA**2))
        return CIDER_SCALE * near * cosines.mean(axis=0)


SIMILARITIES = {"bleu": Bleu, "sentence_bleu": SentenceBleu, "cider": Cider}


def _totals(lengths: np.ndarray) -> np.ndarray:
    """How many n-grams of every order sentences have: [4, S]."""
    return np.maximum(lengths - np.arange(ORDERS)[:, np.newaxis], 0)


def _shared(
    sentences: Sentences, counts: scipy.sparse.csr_array, weights: np.ndarray | None = None
) -> np.ndarray:
    """What captions share with sentences, by the order of n-grams: [4, S, C].

    Every occurrence of an n-gram counts that both have, or with weights as much as the n-gram
    weighs, times its occurrences in the caption.

    Args:
        sentences: `Sentences`, [S, U].
        counts: sparse float [C, U], of the captions.
        weights: float [U], of the n-grams.
    """
    orders = sentences.orders[:, np.newaxis] == np.arange(1, ORDERS + 1)
    shared = np.zeros((counts.shape[0], ORDERS * len(sentences.counts)))
    # The smaller of two counts is a sum of products: both have a first occurrence, a second, ...
    for occurrence in range(int(sentences.counts.max(initial=0))):
        own = (sentences.counts > occurrence) * (1.0 if weights is None else weights)
        there = counts.data > occurrence
        theirs = there.astype(float) if weights is None else there * counts.data
        theirs = scipy.sparse.csr_array((theirs, counts.indices, counts.indptr), counts.shape)
        by_order = orders[:, :, np.newaxis] * own.T[:, np.newaxis]
        shared += theirs @ by_order.reshape(len(orders), -1)
    return shared.T.reshape(ORDERS, len(sentences.counts), counts.shape[0])

"""How similar sentences are to captions, all pairs of an image at once.

Args of every similarity: the `Corpus` of captions, which gives CIDEr its document frequencies.

>>> corpus = Corpus.of([["A dog runs.", "the dog"], ["a cat"]])
>>> Bleu(corpus).to_captions(corpus.sentences(["a dog"]), corpus.rows([0]))
array([[0.48888889, 0.25      ]])
"""

import functools
import itertools

import numpy as np

from mrnn_tf.retrieval.ngrams import ORDERS, Corpus, Sentences

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
        return self._of_counts(sentences, sentences.counts, sentences.lengths)

    def _of_counts(
        self, sentences: Sentences, counts: np.ndarray, lengths: np.ndarray
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
            raise ValueError("`corpus` must hold an image at least: CIDEr needs its frequencies.")
        self.corpus = corpus

    def to_captions(self, sentences: Sentences, rows: np.ndarray) -> np.ndarray:
        """The similarity of sentences to captions of the corpus: [sentences, captions]."""
        counts = self.corpus.counts_of(sentences.nodes, rows)
        return self._of_counts(sentences, counts, self.corpus.lengths[rows], self.norms[:, rows])

    def to_each_other(self, sentences: Sentences) -> np.ndarray:
        """The similarity of every sentence to every one: [sentences, sentences]."""
        norms = self._own_norms(sentences)
        return self._of_counts(sentences, sentences.counts, sentences.lengths, norms)

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
        self, sentences: Sentences, counts: np.ndarray, lengths: np.ndarray, norms: np.ndarray
    ) -> np.ndarray:
        weighted = counts * np.square(self.weights[sentences.nodes])
        shared = _shared(sentences, counts, weighted)
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
    sentences: Sentences, counts: np.ndarray, values: np.ndarray | float = 1.0
) -> np.ndarray:
    """The sum of what captions give for n-grams they share with sentences: [4, S, C].

    An n-gram that the caption has less often than the sentence counts as often as in the caption.

    Args:
        sentences: `Sentences`, [S, U].
        counts: float [C, U], of the captions.
        values: float [C, U], for one occurrence of an n-gram.
    """
    # Every occurrence is a column of its own: the smaller of two counts is then a product.
    most = sentences.counts.max(axis=0, initial=0).astype(int)
    columns = np.repeat(np.arange(len(most)), most)
    occurrence = np.arange(len(columns)) - np.repeat(np.cumsum(most) - most, most)
    own = (sentences.counts[:, columns] > occurrence).astype(float)
    values = np.broadcast_to(values, counts.shape)[:, columns]
    theirs = np.where(counts[:, columns] > occurrence, values, 0.0)
    ends = np.searchsorted(sentences.orders[columns], np.arange(1, ORDERS + 2))
    return np.stack([own[:, a:b] @ theirs[:, a:b].T for a, b in itertools.pairwise(ends)])

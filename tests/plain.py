"""Similarities pair by pair, as their definitions have them."""

import collections

import numpy as np
from pycocoevalcap.cider.cider_scorer import CiderScorer


def bleu(hypothesis, reference):
    """The mean F1 of n-grams of the orders that one of the two has."""
    scores = []
    for n in range(1, 5):
        mine, theirs = (
            collections.Counter(tuple(s[i : i + n]) for i in range(len(s) - n + 1))
            for s in (hypothesis.split(), reference.split())
        )
        if mine or theirs:
            shared = sum((mine & theirs).values())
            scores.append(2 * shared / (sum(mine.values()) + sum(theirs.values())))
    return sum(scores) / max(len(scores), 1)


def cider(corpus):
    """pycocoevalcap's CIDEr-D of a pair, with the frequencies of tokenised captions of images."""
    frequencies = CiderScorer()
    for captions in corpus:
        frequencies += (None, captions)
    frequencies.compute_doc_freq()

    def similarity(hypothesis, reference):
        scorer = CiderScorer(hypothesis, [reference])
        scorer.document_frequency = frequencies.document_frequency
        # It takes the number of images for that of references, of which only the first is scored.
        scorer.crefs += [[]] * (len(corpus) - 1)
        [score] = scorer.compute_cider()
        return score

    return similarity


def table(function, left, right):
    return np.array([[function(a, b) for b in right] for a in left]).reshape(len(left), len(right))

"""The speed of consensus reranking, side by side with a plain implementation.

    python benchmarks/consensus.py
    python benchmarks/consensus.py --data data/flickr8k

Ten hypotheses of an image against the 300 captions of its 60 neighbours. The plain implementation
compares pair by pair and counts the n-grams of both sentences each time, as the authors' program
does; for CIDEr it is pycocoevalcap's own, with document frequencies counted beforehand, as ours
are. Both sides take turns in one process with one thread; the best round counts, and the scores are
the same to 1e-6. Captions are synthetic unless --data names records: words follow Zipf's law,
lengths those of Flickr8k. Served is what an exported index runs, image by image.
"""

import collections
import timeit
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl import app, flags
from pycocoevalcap.cider.cider_scorer import CiderScorer

from mrnn_tf.consensus.neighbours import Near
from mrnn_tf.consensus.ngrams import Corpus
from mrnn_tf.consensus.reranking import Comparison, M, RerankSettings, consensus
from mrnn_tf.consensus.similarity import CiderD
from mrnn_tf.data import pipeline
from mrnn_tf.metrics import captions as metrics
from mrnn_tf.metrics.nbest import NBest

_DATA = flags.DEFINE_string("data", None, "Records whose training captions are used.")
_CAPTIONS = flags.DEFINE_integer("captions", 30_000, "Synthetic training captions.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds of each side; the best counts.")
HYPOTHESES, NEIGHBOURS, PER_IMAGE, IMAGES, FEW = 10, 60, 5, 64, 2
VOCABULARY = 8_000


def main(_) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    captions = list(pipeline.captions(_DATA.value, "train")) if _DATA.value else None
    captions = [metrics.tokenize(texts) for texts in captions or synthetic(_CAPTIONS.value)]
    corpus = Corpus.of(captions)
    n_best, near = questions(captions)
    print(
        f"{IMAGES} images, {HYPOTHESES} hypotheses each, against the captions of {NEIGHBOURS} of "
        f"{len(captions):,} images"
    )
    for name, similarity in {"bleu": _plain_bleu, "cider": _plain_cider(captions)}.items():
        comparison = Comparison(name, corpus)

        def ours(comparison=comparison, name=name):
            return comparison(n_best, near).scores(name, RerankSettings(NEIGHBOURS))

        def plain(similarity=similarity, m=M[name]):
            return [
                _plain_scores(similarity, captions, n_best[image], near.images[image], m)
                for image in range(FEW)
            ]

        same = max(np.abs(a - b).max() for a, b in zip(ours().values(), plain(), strict=False))
        mine, theirs = 1e3 * best_times(ours, plain) / np.array([IMAGES, FEW])
        print(
            f"  {name:6} ours {mine:8.2f} ms an image, plain {theirs:8.1f} ms, "
            f"ratio {theirs / mine:.0f} (at least 100), scores differ by {same:.0e}"
        )
    cider = CiderD(corpus)
    served = tf.function(lambda texts, *near: consensus(cider, texts, Near(*near)))
    asked = [
        (tf.constant([n_best[i].captions]), near.images[i : i + 1], near.weights[i : i + 1])
        for i in range(IMAGES)
    ]
    [seconds] = best_times(lambda: [served(*one) for one in asked])
    print(f"  cider served {1e3 * seconds / IMAGES:.2f} ms an image")


def _plain_scores(similarity: Callable, captions: list, hypotheses: NBest, near, m: int):
    references = [caption for image in near for caption in captions[image]]
    pairs = ([similarity(each, caption) for caption in references] for each in hypotheses.captions)
    return np.array([np.mean(sorted(scores, reverse=True)[:m]) for scores in pairs])


def _plain_bleu(hypothesis: str, reference: str) -> float:
    scores = []
    for n in range(1, 5):
        mine, theirs = (
            collections.Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
            for words in (hypothesis.split(), reference.split())
        )
        if mine or theirs:
            shared = sum((mine & theirs).values())
            scores.append(2 * shared / (sum(mine.values()) + sum(theirs.values())))
    return sum(scores) / max(len(scores), 1)


def _plain_cider(captions: list[list[str]]) -> Callable[[str, str], float]:
    counted = CiderScorer()
    for texts in captions:
        counted += (None, texts)
    counted.compute_doc_freq()
    unscored = [[]] * (len(captions) - 1)  # the number of images is that of reference lists

    def similarity(hypothesis: str, reference: str) -> float:
        scorer = CiderScorer(hypothesis, [reference])
        scorer.crefs += unscored
        scorer.document_frequency = counted.document_frequency
        return scorer.compute_cider()[0]

    return similarity


def questions(captions: list[list[str]]) -> tuple[dict[int, NBest], Near]:
    """Hypotheses and neighbours; a hypothesis is a caption with the end of another one."""
    rng = np.random.default_rng(1)
    n_best, near = {}, []
    for image in range(IMAGES):
        near.append(rng.choice(len(captions), NEIGHBOURS, replace=False))
        texts = [caption.split() for other in near[-1] for caption in captions[other]]
        pairs = rng.integers(0, len(texts), (HYPOTHESES, 2))
        n_best[image] = NBest(tuple(" ".join(texts[a][:5] + texts[b][-5:]) for a, b in pairs))
    return n_best, Near(np.array(near), np.ones((IMAGES, NEIGHBOURS)))


def synthetic(captions: int) -> list[list[str]]:
    rng = np.random.default_rng(0)
    chances = 1 / np.arange(2, VOCABULARY + 2)
    words = np.array([f"word{i}" for i in range(VOCABULARY)])
    lengths = np.clip(rng.normal(10.8, 3.8, captions).round(), 2, 30).astype(int)
    drawn = words[rng.choice(VOCABULARY, lengths.sum(), p=chances / chances.sum())]
    texts = [" ".join(part) for part in np.split(drawn, np.cumsum(lengths)[:-1])]
    return [texts[i : i + PER_IMAGE] for i in range(0, captions, PER_IMAGE)]


def best_times(*sides: Callable) -> np.ndarray:
    """The seconds of each side in its best round, after one round that does not count."""
    rounds = [[timeit.timeit(side, number=1) for side in sides] for _ in range(_ROUNDS.value + 1)]
    return np.min(rounds[1:], axis=0)


if __name__ == "__main__":
    app.run(main)

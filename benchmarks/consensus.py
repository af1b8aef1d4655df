"""The speed of consensus reranking, side by side with a plain implementation.

    python benchmarks/consensus.py
    python benchmarks/consensus.py --data data/flickr8k

Ten hypotheses of an image against the 300 captions of its 60 neighbours. The plain implementation
compares pair by pair and counts the n-grams of both sentences each time, as the authors' program
does; for CIDEr its document frequencies are counted beforehand, as ours are. Both sides begin with
tokenised hypotheses and take turns in one process with one thread; the best round counts, and the
scores are the same to 1e-6. Captions are synthetic unless --data names records: words follow
Zipf's law, lengths those of Flickr8k. In graph is what an exported index runs, with tokenising.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import collections
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl import app, flags

from mrnn_tf.consensus import graph as consensus_graph
from mrnn_tf.consensus import reranking as consensus
from mrnn_tf.consensus.ngrams import Corpus
from mrnn_tf.data import pipeline
from mrnn_tf.metrics import captions as metrics
from mrnn_tf.metrics.cider import CiderD

_DATA = flags.DEFINE_string("data", None, "Records whose training captions are used.")
_CAPTIONS = flags.DEFINE_integer("captions", 30_000, "Synthetic training captions.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds of each side; the best counts.")
HYPOTHESES, NEIGHBOURS, PER_IMAGE, IMAGES = 10, 60, 5, 20
VOCABULARY = 8_000


def main(_) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    captions = list(pipeline.captions(_DATA.value, "train")) if _DATA.value else None
    _compare(captions or _synthetic(_CAPTIONS.value))
    print("\ngrowth with the number of training captions (synthetic), cider")
    for count in (3_000, 30_000, 300_000):
        _grow(_synthetic(count))


def _compare(captions: list[list[str]]) -> None:
    began = time.perf_counter()
    corpus = Corpus.of(captions)
    counted = time.perf_counter() - began
    tokenized = [metrics.tokenize(some) for some in captions]
    plain_cider = CiderD(tokenized)
    asked = _asked(corpus, tokenized)
    print(
        f"{len(asked)} images, {HYPOTHESES} hypotheses each, against the captions of {NEIGHBOURS} "
        f"of {len(captions):,} images\n{corpus.counts.shape[0]:,} captions counted once in "
        f"{counted:.1f} s: {corpus.counts.shape[1]:,} n-grams"
    )
    plain = {
        "bleu": _plain_bleu,
        "cider": lambda a, b: plain_cider.similarity(plain_cider.vector(a), plain_cider.vector(b)),
    }
    for name, similarity in plain.items():
        compare, m = consensus.Comparison(name, corpus), consensus.M[name]
        few = asked[:2]
        sides = {
            "ours": lambda compare=compare, m=m: _ours(compare, asked, m),
            "plain": lambda few=few, similarity=similarity, m=m: _plainly(
                similarity, tokenized, few, m
            ),
        }
        same = np.abs(np.array(sides["ours"]()[: len(few)]) - np.array(sides["plain"]())).max()
        times = _times(sides)
        ours, theirs = 1e3 * times["ours"] / len(asked), 1e3 * times["plain"] / len(few)
        print(
            f"  {name:6} ours {ours:8.2f} ms an image, plain {theirs:8.1f} ms, "
            f"ratio {theirs / ours:.0f} (at least 100), scores differ by {same:.0e}"
        )
    graph = consensus_graph.ConsensusGraph(corpus.words, consensus_graph.arrays(corpus))
    scores = tf.function(graph.scores)
    sentences = tf.constant([hypotheses for hypotheses, _ in asked])
    near = tf.constant([near for _, near in asked])
    times = _times(
        {
            "one": lambda: [
                scores(sentences[i : i + 1], near[i : i + 1]) for i in range(len(near))
            ],
            "all": lambda: scores(sentences, near),
        }
    )
    told = ", ".join(f"{name} {1e3 * each / len(asked):.2f}" for name, each in times.items())
    print(f"  cider in graph, ms an image, one or all of them a call: {told}")


def _grow(captions: list[list[str]]) -> None:
    began = time.perf_counter()
    corpus = Corpus.of(captions)
    compare = consensus.Comparison("cider", corpus)
    asked = _asked(corpus, captions)
    _ours(compare, asked[:1], consensus.M["cider"])
    counted = time.perf_counter() - began
    seconds = _times({"ours": lambda: _ours(compare, asked, consensus.M["cider"])})["ours"]
    print(
        f"  {corpus.counts.shape[0]:8,} captions: {1e3 * seconds / len(asked):6.2f} ms an image, "
        f"counted once in {counted:.1f} s"
    )


def _ours(compare: consensus.Comparison, asked: list, m: int) -> list[np.ndarray]:
    return [compare(some, near).by_neighbours(NEIGHBOURS, m) for some, near in asked]


def _plainly(similarity: Callable, tokenized: list, asked: list, m: int) -> list[np.ndarray]:
    scores = []
    for hypotheses, near in asked:
        captions = [caption for image in near for caption in tokenized[image]]
        pairs = [
            sorted((similarity(each, c) for c in captions), reverse=True) for each in hypotheses
        ]
        scores.append(np.array([sum(some[:m]) / len(some[:m]) for some in pairs]))
    return scores


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


def _asked(corpus: Corpus, tokenized: list[list[str]]) -> list[tuple[list[str], np.ndarray]]:
    """Hypotheses and neighbours; a hypothesis is a caption with the end of another one."""
    rng = np.random.default_rng(1)
    asked = []
    for _ in range(IMAGES):
        near = rng.choice(len(corpus.images) - 1, NEIGHBOURS, replace=False)
        captions = [caption.split() for image in near for caption in tokenized[image]]
        pairs = rng.integers(0, len(captions), (HYPOTHESES, 2))
        hypotheses = [" ".join(captions[a][:5] + captions[b][-5:]) for a, b in pairs]
        asked.append((hypotheses, near))
    return asked


def _synthetic(captions: int) -> list[list[str]]:
    rng = np.random.default_rng(0)
    chances = 1 / np.arange(2, VOCABULARY + 2)
    words = np.array([f"word{i}" for i in range(VOCABULARY)])
    lengths = np.clip(rng.normal(10.8, 3.8, captions).round(), 2, 30).astype(int)
    drawn = words[rng.choice(VOCABULARY, lengths.sum(), p=chances / chances.sum())]
    ends = np.cumsum(lengths)
    texts = [" ".join(drawn[e - n : e]) for n, e in zip(lengths, ends, strict=True)]
    return [texts[i : i + PER_IMAGE] for i in range(0, captions, PER_IMAGE)]


def _times(sides: dict[str, Callable]) -> dict[str, float]:
    """The seconds of each side in its best round, after one round that does not count."""
    best = dict.fromkeys(sides, np.inf)
    for number in range(_ROUNDS.value + 1):
        for name, call in sides.items():
            began = time.perf_counter()
            call()
            if number:
                best[name] = min(best[name], time.perf_counter() - began)
    return best


if __name__ == "__main__":
    app.run(main)

"""The speed of consensus reranking, side by side with a plain implementation.

    python benchmarks/consensus.py
    python benchmarks/consensus.py --data data/flickr8k

Ten hypotheses of an image against the 300 captions of its 60 neighbours. The plain implementation,
which the tests compare with too, goes pair by pair and counts the n-grams of both sentences each
time, as the authors' program does; for CIDEr it is pycocoevalcap's own, with document frequencies
counted beforehand, as ours are. Both sides take turns in one process with one thread; the best
round counts, and the scores are the same to 1e-6. Captions are synthetic unless --data names
records: words follow Zipf's law, lengths those of Flickr8k. Served is what an exported index runs,
image by image.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf
import timing
from absl import app, flags

from mrnn_tf.consensus.neighbours import Near
from mrnn_tf.consensus.ngrams import Corpus
from mrnn_tf.consensus.reranking import Comparison, M, RerankSettings, consensus
from mrnn_tf.consensus.similarity import CiderD
from mrnn_tf.data import pipeline
from mrnn_tf.metrics import captions as metrics
from mrnn_tf.metrics.nbest import NBest

sys.path.append(str(Path(__file__).parent.parent / "tests"))
import plain

_DATA = flags.DEFINE_string("data", None, "Records whose training captions are used.")
_CAPTIONS = flags.DEFINE_integer("captions", 30_000, "Synthetic training captions.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds of each side; the best counts.")
HYPOTHESES, NEIGHBOURS, PER_IMAGE, IMAGES, FEW = 10, 60, 5, 64, 2
VOCABULARY = 8_000


def main(_) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    raw = pipeline.captions(_DATA.value, "train") if _DATA.value else synthetic(_CAPTIONS.value)
    captions = [metrics.tokenize(texts) for texts in raw]
    corpus = Corpus.of(captions)
    n_best, near = questions(captions)
    print(f"{IMAGES} images, {HYPOTHESES} hypotheses each, {NEIGHBOURS} neighbours of each")
    for name, similarity in {"bleu": plain.bleu, "cider": plain.cider(captions)}.items():
        sides = {
            "ours": ours(name, corpus, n_best, near),
            "plain": lambda name=name, similarity=similarity: [
                _plain_scores(similarity, captions, n_best[image], near.images[image], M[name])
                for image in range(FEW)
            ],
        }
        scores = sides["ours"](), sides["plain"]()
        same = max(np.abs(scores[0][image] - scores[1][image]).max() for image in range(FEW))
        times = timing.best_seconds(sides, _ROUNDS.value)
        mine, theirs = 1e3 * times["ours"] / IMAGES, 1e3 * times["plain"] / FEW
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
    times = timing.best_seconds({"served": lambda: [served(*one) for one in asked]}, _ROUNDS.value)
    print(f"  cider served {1e3 * times['served'] / IMAGES:.2f} ms an image")


def ours(name: str, corpus: Corpus, n_best: dict[int, NBest], near: Near) -> Callable:
    comparison, settings = Comparison(name, corpus), RerankSettings(NEIGHBOURS)
    return lambda: comparison(n_best, near).scores(name, settings)


def _plain_scores(similarity: Callable, captions: list, hypotheses: NBest, near, m: int):
    references = [caption for image in near for caption in captions[image]]
    pairs = ([similarity(each, caption) for caption in references] for each in hypotheses.captions)
    return np.array([np.mean(sorted(scores, reverse=True)[:m]) for scores in pairs])


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


if __name__ == "__main__":
    app.run(main)

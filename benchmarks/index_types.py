"""The types of an index's arrays: what smaller ones than float32 do to results, time and memory.

    python benchmarks/index_types.py --job_dir runs/paper --data data/flickr8k

- Images, rounded to each of the 16-bit types: how many of the ten best images of sentences stay.
  Images beyond those of the dataset are its images with 10 % of noise on every feature.
- Vectors of sentences, as an index serves them: how many of the ten best sentences of images stay,
  and the processor time of a search to that with float32. The sentences are all captions of the
  dataset, and log P(s) is that of the mean image.

Both sides of a ratio run in turns in one process; the best round counts.
"""

import time

import numpy as np
import tensorflow as tf
from absl import app, flags

from mrnn_tf import schema
from mrnn_tf.retrieval import marginal
from mrnn_tf.retrieval.index import NO_IMAGE, Index, Texts
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.search import Hits, Searcher, SentenceTable
from mrnn_tf.retrieval.sentences import pad
from mrnn_tf.run import Run
from mrnn_tf.split import Split

_JOB_DIR = flags.DEFINE_string("job_dir", None, "A trained run.", required=True)
_DATA = flags.DEFINE_string("data", None, "Its records.", required=True)
_QUERIES = flags.DEFINE_integer("queries", 200, "Queries whose ten best are compared.")
_COUNTS = flags.DEFINE_list("counts", ["1000", "10000", "100000"], "Numbers of images.")
_ROUNDS = flags.DEFINE_integer("rounds", 20, "Rounds of each side; the best counts.")
_K = 10
_TYPES = {"float16": tf.float16, "bfloat16": tf.bfloat16}


def main(_) -> None:
    run = Run.load(_JOB_DIR.value)
    scorer = Scorer(run.network.model)
    val, train = (Split.read(run, _DATA.value, split) for split in (schema.VAL, schema.TRAIN))
    sample = train.features[marginal.sample_rows(len(train.features), 200, 0)]
    mean = scorer.project(sample).mean(axis=0)
    texts = [text for split in (val, train) for own in split.captions for text in own]
    words = pad(run.vocabulary.ids(tf.constant(texts)).to_list())
    of_val = sum(map(len, val.captions))
    asked = words[np.random.default_rng(0).permutation(of_val)[: _QUERIES.value]]
    _sentences(scorer, mean, scorer.project(val.features[: _QUERIES.value]), texts, words)
    features = np.concatenate([val.features, train.features])
    for count in map(int, _COUNTS.value):
        _images(scorer, mean, scorer.project(_noisy(features, count)), asked)


def _images(scorer: Scorer, mean: np.ndarray, images: np.ndarray, asked: np.ndarray) -> None:
    searcher = Searcher(scorer, mean, images)
    expected = searcher.search_images(asked, _K)
    print(f"{len(images):,} images, {len(asked)} sentences")
    for name, dtype in _TYPES.items():
        # The same graph: only the values change.
        searcher.arrays["images"].assign(tf.cast(tf.cast(images, dtype), tf.float32))
        print(f"  {name}: {_kept(expected, searcher.search_images(asked, _K))}")


def _sentences(
    scorer: Scorer, mean: np.ndarray, asked: np.ndarray, texts: list[str], words: np.ndarray
) -> None:
    table = SentenceTable.of(scorer, words, mean[np.newaxis])
    index = Index(
        Texts.of([]),
        asked[:0],
        Texts.of([text.encode() for text in texts]),
        *table,
        owners=np.full(len(texts), NO_IMAGE, np.int32),
        mean=mean,
        sample=mean[np.newaxis],
        header=None,  # it is not saved
    )
    searchers = [Searcher(scorer, mean, asked[:0], each) for each in (table, index.table)]
    kept = _kept(*(searcher.search_sentences(asked, _K) for searcher in searchers))
    best = [np.inf, np.inf]
    for _ in range(_ROUNDS.value):
        for side, searcher in enumerate(searchers):
            began = time.process_time()  # not disturbed by other processes
            searcher.search_sentences(asked[:1], _K)
            best[side] = min(best[side], time.process_time() - began)
    print(
        f"{len(texts):,} sentences, {len(asked)} images, vectors of an index: {kept}, "
        f"{best[1] / best[0]:.2f} of the time of float32"
    )


def _kept(expected: Hits, hits: Hits) -> str:
    rows = zip(expected.rows.numpy(), hits.rows.numpy(), strict=True)
    share = np.mean([len({*some} & {*others}) / _K for some, others in rows])
    change = np.abs(hits.scores - expected.scores).max()
    return f"{share:.2%} of the ten best kept, scores change by {change:.4f} at most"


def _noisy(features: np.ndarray, count: int) -> np.ndarray:
    """As many features: those given first, then copies with noise."""
    rng = np.random.default_rng(0)
    copies = features[rng.integers(0, len(features), max(0, count - len(features)))]
    for block in np.array_split(copies, range(4096, len(copies), 4096)):
        block *= 1 + rng.normal(0, 0.1, block.shape).astype(np.float32)
    return np.concatenate([features[:count], copies])


if __name__ == "__main__":
    app.run(main)

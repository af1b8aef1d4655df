"""The types of an index's arrays: what smaller ones than float32 do to results, time and memory.

    python benchmarks/index_types.py --job_dir runs/paper --data data/flickr8k

- Vectors of sentences, as an index serves them. The sentences are all captions of the dataset, and
  log P(s) is that of the mean image.
- Projections of images, rounded to each of the 16-bit types. Their time is that of a query whose
  inner products alone take a matrix of this type, which is cast in blocks.
- Refined features, for `similar_images`, as an index serves them, to a matrix of their own, with as
  many candidates, half a shortlist, and with a whole one.
- Whitened features, for `caption_reranked`, in each of the 16-bit types.

Images are those of the training split and mixtures of two of them, with the captions of one of the
two. Queries are captions and images of the validation split. Printed is what stays the same as with
float32, the processor time of a single query to that with float32, and the size. Both sides of a
ratio run in turns in one process; the best round counts.
"""

import time
from collections.abc import Callable, Hashable

import numpy as np
import tensorflow as tf
import timing
from absl import app, flags
from mixtures import mixtures

from export.index import variable_bytes
from export.index_signatures import IndexServable, IndexSettings
from mrnn_tf import schema
from mrnn_tf.consensus.neighbours import NeighbourSearch
from mrnn_tf.model.layers import scaled_tanh
from mrnn_tf.retrieval import marginal, search
from mrnn_tf.retrieval.centres import Centres
from mrnn_tf.retrieval.index import NO_IMAGE, Index, Texts
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.search import BY_COUNT, Hits, Searcher, SentenceTable, listed
from mrnn_tf.retrieval.sentences import pad
from mrnn_tf.run import Run
from mrnn_tf.split import Split

_JOB_DIR = flags.DEFINE_string("job_dir", None, "A trained run.", required=True)
_DATA = flags.DEFINE_string("data", None, "Its records.", required=True)
_QUERIES = flags.DEFINE_integer("queries", 200, "Queries whose results are compared.")
_COUNTS = flags.DEFINE_list("counts", ["1000", "10000", "100000"], "Numbers of images.")
_ROUNDS = flags.DEFINE_integer("rounds", 20, "Rounds of each side; the best counts.")
_K = 10
_FLOAT32, _TYPES = "float32", {"float16": tf.float16, "bfloat16": tf.bfloat16}


def main(_) -> None:
    run = Run.load(_JOB_DIR.value)
    scorer = Scorer(run.network.model)
    val, train = (Split.read(run, _DATA.value, split) for split in (schema.VAL, schema.TRAIN))
    sample = train.features[marginal.sample_rows(len(train.features), 200, 0)]
    centres = Centres.of(scorer.project(sample))
    mean = centres.mean
    texts = [text for split in (val, train) for own in split.captions for text in own]
    words = pad(run.vocabulary.ids(tf.constant(texts)).to_list())
    of_val = sum(map(len, val.captions))
    sentences = words[np.random.default_rng(0).permutation(of_val)[: _QUERIES.value]]
    asked = val.features[: _QUERIES.value]
    _sentences(scorer, mean, scorer.project(asked), texts, words)
    for count in map(int, _COUNTS.value):
        images, photos = mixtures(scorer, train.features, count)
        print(f"{count:,} images, {len(asked)} queries")
        _projections(Searcher(scorer, centres, images), images, sentences)
        servable = _servable(run, mean, images, [train.captions[photo] for photo in photos])
        _refined(servable, asked)
        _whitened(servable, asked)


def _projections(searcher: Searcher, images: np.ndarray, asked: np.ndarray) -> None:
    expected, query = searcher.search_images(asked, _K), tf.constant(images[:1])
    matrices = {name: tf.Variable(tf.cast(images, dtype)) for name, dtype in _TYPES.items()}
    products = {
        name: tf.function(lambda matrix=matrix: search._products(query, matrix))
        for name, matrix in {_FLOAT32: searcher.arrays["images"], **matrices}.items()
    }
    seconds = _seconds({**products, "query": lambda: searcher.search_images(asked[:1], _K)})
    for name, matrix in matrices.items():
        # The same graph: only the values change.
        searcher.arrays["images"].assign(tf.cast(matrix, tf.float32))
        kept = _kept(expected, searcher.search_images(asked, _K))
        time_of_query = seconds["query"] + seconds[name] - seconds[_FLOAT32]
        _tell(f"projections, {name}", kept, time_of_query / seconds["query"], images.nbytes // 2)


def _refined(servable: IndexServable, asked: np.ndarray) -> None:
    images = servable.index.images
    served, answers = _ask(servable.similar_images, asked)
    size = variable_bytes(servable._similar) - images.nbytes
    servable._similar = own = NeighbourSearch(scaled_tanh(images))
    as_many, expected = _ask(servable.similar_images, asked)

    def with_all(features: tf.Tensor) -> dict[str, tf.Tensor]:
        refined = scaled_tanh(servable._project(features))
        rows, far = own.candidates(refined, listed(len(images), _K, BY_COUNT))
        return servable._images(rows[:, :_K], -far[:, :_K])

    seconds = _seconds({"served": served, "as many": as_many, "all": _ask(with_all, asked)[0]})
    kept = f"{_share(expected[schema.IDS], answers[schema.IDS]):.2%} of the ten best kept"
    kept += f", {seconds['served'] / seconds['as many']:.2f} of the time with as many candidates"
    _tell("refined, as served", kept, seconds["served"] / seconds["all"], size)


def _whitened(servable: IndexServable, asked: np.ndarray) -> None:
    neighbourhood, refined = servable.neighbourhood, scaled_tanh(servable._project(asked))
    searches = {_FLOAT32: neighbourhood._search}
    for name, dtype in _TYPES.items():
        searches[name] = SmallSearch(neighbourhood._search._images, dtype)
    calls, near, best = {}, {}, {}
    for name, each in searches.items():
        neighbourhood._search = each
        near[name] = neighbourhood.near(refined).images.numpy()
        calls[name], answers = _ask(servable.caption_reranked, asked)
        best[name] = answers[schema.CAPTIONS][:, :1]
    seconds = _seconds(calls)
    for name in _TYPES:
        kept = (
            f"{_share(near[_FLOAT32], near[name]):.2%} of the neighbours and "
            f"{_share(best[_FLOAT32], best[name]):.2%} of the best captions kept"
        )
        ratio = seconds[name] / seconds[_FLOAT32]
        _tell(f"whitened, {name}", kept, ratio, variable_bytes(searches[name]))


class SmallSearch(NeighbourSearch):
    """The search with a matrix of 16 bits, which is cast in blocks."""

    def __init__(self, images: tf.Variable, dtype: tf.DType):
        rounded = tf.cast(images, dtype)
        super().__init__(tf.cast(rounded, tf.float32).numpy())
        self._images = tf.Variable(rounded, trainable=False)

    def _products(self, queries):
        return search._products(queries, self._images)

    def _features(self, rows):
        return tf.cast(super()._features(rows), tf.float32)


def _servable(
    run: Run, mean: np.ndarray, images: np.ndarray, captions: list[list[str]]
) -> IndexServable:
    """An index of captioned images, whose sentences cannot be searched for."""
    owners = np.repeat(np.arange(len(images), dtype=np.int32), [*map(len, captions)])
    index = Index(
        Texts.of([b"%d" % row for row in range(len(images))]),
        images,
        Texts.of([text.encode() for own in captions for text in own]),
        *np.zeros((2, len(owners), 1), np.int32),
        *np.zeros((2, len(owners))),
        owners=owners,
        mean=mean,
        sample=mean[np.newaxis],
        header=None,  # it is not saved
    )
    return IndexServable(run, index, IndexSettings(k=_K))


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
    centres = Centres.of(mean[np.newaxis])
    searchers = [Searcher(scorer, centres, asked[:0], each) for each in (table, index.table)]
    kept = _kept(*(searcher.search_sentences(asked, _K) for searcher in searchers))
    sides = {each: lambda each=each: each.search_sentences(asked[:1], _K) for each in searchers}
    before, after = _seconds(sides).values()
    print(f"{len(texts):,} sentences, {len(asked)} queries")
    _tell("vectors, as served", kept, after / before, 2 * table.vectors.size)


def _ask(method: Callable, asked: np.ndarray) -> tuple[Callable, dict[str, np.ndarray]]:
    """A call with a single query, and the answers to all."""
    function = tf.function(method, input_signature=[tf.TensorSpec([None, asked.shape[1]])])
    parts = [function(part) for part in np.array_split(asked, range(20, len(asked), 20))]
    answers = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return lambda: function(asked[:1]), answers


def _seconds(calls: dict[Hashable, Callable]) -> dict[Hashable, float]:
    # Of the processor, which other processes do not disturb.
    return timing.best_seconds(calls, _ROUNDS.value, clock=time.process_time)


def _tell(name: str, kept: str, ratio: float, size: int) -> None:
    print(f"  {name}: {kept}, {ratio:.2f} of the time, {size / 1e6:,.1f} MB", flush=True)


def _kept(expected: Hits, hits: Hits) -> str:
    share = _share(expected.rows.numpy(), hits.rows.numpy())
    change = np.abs(hits.scores - expected.scores).max()
    return f"{share:.2%} of the ten best kept, scores change by {change:.4f} at most"


def _share(expected: np.ndarray, rows: np.ndarray) -> float:
    """How many of the results [Q, k] are among those expected."""
    pairs = zip(expected, rows, strict=True)
    return np.mean([len({*some} & {*others}) / expected.shape[1] for some, others in pairs])


if __name__ == "__main__":
    app.run(main)

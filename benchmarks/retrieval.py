"""The speed of the served search, side by side with scoring every pair and the last release's.

    python benchmarks/retrieval.py --job_dir runs/best --data data/flickr8k

Needs a trained run: how much can be left out depends on what the network has learned. Images beyond
those of the split are resampled: mixtures of two images of one split, projected anew. Queries are
captions of the validation split, other ones than benchmarks/shortlists.py chooses settings by.
Sides run in turns in one process; the best round counts. On a machine that others use too, `--clock
cpu` compares processor time.

- Scoring: softmax rows per second of log P(s|I) to the matrix products of the same shapes.
- The signature `search_images` of an index, for the ten best images, to scoring every pair (timed
  on 10,000 images at most, and taken as often) and to the signature of release 0.1, which scored a
  shortlist of four roots whole; how many of the exact ten each finds.
- 16 queries together to one by one, and `search_images_exact`.
- `search_prefix`: what another word costs, to a prefix of one word, which is a single step and the
  shortlist.
- How all that grows with the number of images, and the memory of the process.
- The recall of the exact ten sentences of images, in the other direction, by shortlists.
"""

import resource
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import timing
from absl import app, flags
from mixtures import SETTINGS, mixtures, queries

from export.index_signatures import IndexServable
from export.options import IndexSettings
from mrnn_tf import schema
from mrnn_tf.retrieval import marginal, softmax
from mrnn_tf.retrieval.index import NO_IMAGE, Index, Texts
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.search import Hits, SentenceTable, shortlist_size
from mrnn_tf.retrieval.sentences import pad
from mrnn_tf.run import Run
from mrnn_tf.split import Split

_JOB_DIR = flags.DEFINE_string("job_dir", None, "A trained run.", required=True)
_DATA = flags.DEFINE_string("data", None, "Its records.", required=True)
_RECALL_QUERIES = flags.DEFINE_integer("recall_queries", 200, "Sentences that recall is taken of.")
_COUNTS = flags.DEFINE_list("counts", ["1000", "10000", "100000"], "Numbers of images.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Rounds of each side; the best counts.")
_CLOCK = flags.DEFINE_enum("clock", "wall", ["wall", "cpu"], "What is compared.")
_SENTENCES = flags.DEFINE_bool("sentences", True, "Search for sentences too.")
_K, _SAMPLE, _TOGETHER, _ALL_PAIRS = 10, 5000, 16, 10_000
_BLOCKS = (512, 1024, 2048, 4096)


def main(_) -> None:
    run = Run.load(_JOB_DIR.value)
    scorer = Scorer(run.network.model)
    split = Split.read(run, _DATA.value, schema.VAL)
    training = Split.read(run, _DATA.value, schema.TRAIN).features
    sample = scorer.project(training[marginal.sample_rows(len(training), _SAMPLE, 0)])
    chosen = queries(split)[SETTINGS:]
    baseline = _score(run, chosen[:4], scorer.project(split.features[:500]))
    seconds = {}
    for count in map(int, _COUNTS.value):
        images, _ = mixtures(scorer, split.features, count)
        servable = _servable(run, images, sample, [])
        del images
        seconds[count] = _search(servable, baseline, chosen)
    first, *more = seconds
    for count in more:
        print(f"{count:,} images: {seconds[count] / seconds[first]:.2f} times {first:,}")
    if _SENTENCES.value:
        images, texts = scorer.project(split.features), queries(split)
        searcher = _servable(run, images, sample, texts).searcher
        asked = images[: _RECALL_QUERIES.value]
        print(f"{len(texts):,} sentences, {len(asked)} images")
        _recall(lambda shortlist: searcher.search_sentences(asked, _K, shortlist), len(texts))


def _servable(run: Run, images: np.ndarray, sample: np.ndarray, texts: list[str]) -> IndexServable:
    """An index as it is served, of images and of sentences that belong to none."""
    index = Index(
        Texts.of([b"%d" % row for row in range(len(images))]),
        images,
        Texts.of([text.encode() for text in texts]),
        *SentenceTable.of(Scorer(run.network.model), _words(run, texts), sample),
        owners=np.full(len(texts), NO_IMAGE, np.int32),
        mean=sample.mean(axis=0),
        sample=sample,
        header=None,  # it is not saved
    )
    return IndexServable(run, index, IndexSettings(k=_K))


def _seconds(sides: dict[str, Callable[[], object]]) -> dict[str, float]:
    clock = time.process_time if _CLOCK.value == "cpu" else time.perf_counter
    return timing.best_seconds(sides, _ROUNDS.value, clock=clock)


def _score(run: Run, texts: list[str], images: np.ndarray) -> Scorer:
    """Prints rows per second of scoring to those of the products alone; the fastest scorer."""
    words = _words(run, texts)
    rows = np.count_nonzero(words) * len(images)

    def of_block(block: int) -> tuple[Scorer, Callable, Callable]:
        softmax.ROWS = block
        scorer = Scorer(run.network.model)
        read, kernel = scorer.read(words), scorer.readout.kernel
        product = tf.function(lambda values: tf.reduce_max(tf.matmul(values, kernel)[:, 0]))
        values = tf.zeros([block, kernel.shape[0]])
        score = lambda: scorer.matrix(read, images)  # noqa: E731
        score()  # traces with this block
        return scorer, score, lambda: [product(values) for _ in range(rows // block)]

    default, sides = softmax.ROWS, {block: of_block(block) for block in _BLOCKS}
    softmax.ROWS = default
    score, products = (_seconds({block: side[i] for block, side in sides.items()}) for i in (1, 2))
    block = min(score, key=score.get)
    print(
        f"scoring: {rows / score[block]:,.0f} rows a second in blocks of {block}, "
        f"{min(products.values()) / score[block]:.2f} of the bare products"
    )
    return sides[block][0]


def _search(servable: IndexServable, baseline: Scorer, texts: list[str]) -> float:
    """Prints how the searches of an index compare; the seconds of one query."""
    images, signatures = servable.searcher.arrays["images"], servable.signatures()
    asked = texts[:_TOGETHER]
    words, queries = _words(servable, asked), tf.constant(asked)
    served = signatures[schema.SEARCH_IMAGES]
    exact = signatures[schema.SEARCH_IMAGES_EXACT]
    few = images[:_ALL_PAIRS].numpy()
    released = _released(servable)

    def every_pair() -> np.ndarray:
        return baseline.matrix(baseline.read(words[:1]), few)

    sides = {
        "every pair": every_pair,
        "released": lambda: released(words[:1]),
        "one": lambda: served(queries[:1]),
        "together": lambda: served(queries),
        "one by one": lambda: [served(queries[row : row + 1]) for row in range(len(asked))],
        "exact": lambda: exact(queries[:1]),
    }
    took = _seconds(sides)
    every = took["every pair"] * images.shape[0] / len(few)
    print(
        f"{images.shape[0]:,} images, one query {1e3 * took['one']:,.1f} ms: "
        f"{took['released'] / took['one']:.1f} times as fast as release 0.1, "
        f"{every / took['one']:,.0f} times as scoring every pair (exact "
        f"{every / took['exact']:,.0f}); {len(asked)} together "
        f"{took['one by one'] / took['together']:.2f} times as fast as one by one "
        f"({1e3 * took['together'] / len(asked):,.1f} and "
        f"{1e3 * took['one by one'] / len(asked):,.1f} ms each)"
    )
    if len(few) == images.shape[0]:
        best = np.argsort(-every_pair(), axis=1, kind="stable")[0, :_K]
        same = exact(queries[:1])[schema.IDS].numpy()[0].astype(int) == best
        print(f"  {same.mean():.0%} of the exact ten are those of every pair")
    _prefixes(signatures[schema.SEARCH_PREFIX], max(asked, key=lambda text: len(text.split())))
    many = _words(servable, texts[: _RECALL_QUERIES.value])
    search = servable.searcher.search_images
    expected = search(many, _K, None).rows
    for name, rows in (("the signature", search(many, _K).rows), ("release 0.1", released(many))):
        print(f"  {_share(expected, rows):.2%} of the exact ten by {name}, {len(many)} queries")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"  {peak:.1f} GB at the most so far", flush=True)
    return took["one"]


def _released(servable: IndexServable) -> Callable[[np.ndarray], np.ndarray]:
    """The search of release 0.1: a shortlist by the mean image, scored whole, query by query."""
    scorer, arrays = servable.searcher.scorer, servable.searcher.arrays
    count = min(shortlist_size(arrays["images"].shape[0]), arrays["images"].shape[0])

    @tf.function(input_signature=[tf.TensorSpec([1, None], tf.int32)])
    def search(words: tf.Tensor) -> tf.Tensor:
        sentences = scorer.read(words)
        vectors = scorer.expand(sentences, arrays["mean"]).vectors
        estimates = tf.matmul(vectors, arrays["images"], transpose_b=True)
        near = tf.math.top_k(estimates[0], count).indices
        scores = scorer.pairs(sentences, tf.zeros_like(near), arrays["images"], near)
        return tf.gather(near, tf.math.top_k(scores, _K).indices)

    return lambda words: np.stack([search(words[row : row + 1]) for row in range(len(words))])


def _prefixes(signature: Callable, sentence: str) -> None:
    """Prints what another word of a prefix costs, to a prefix of one word."""
    words = sentence.split()
    prefixes = [tf.constant([" ".join(words[:end])]) for end in range(1, len(words) + 1)]
    calls = {end: lambda own=own: signature(own) for end, own in enumerate(prefixes, 1)}
    took = _seconds(calls)
    more = np.diff(list(took.values())) / took[1]
    print(
        f"  a prefix of 1 word {1e3 * took[1]:.1f} ms, of {len(words)} "
        f"{1e3 * took[len(words)]:.1f} ms; another word costs {more.mean():.2f} of a single step "
        f"plus the shortlist, the dearest {more.max():.2f}"
    )


def _recall(search: Callable[[int | None], Hits], items: int) -> None:
    """How many of the exact ten shortlists of several lengths hold, and their softmax rows."""
    best = search(None).rows
    for shortlist in sorted({100, 200, 400, shortlist_size(items)}):
        hits = search(shortlist)
        print(
            f"  {_share(best, hits.rows):.1%} of the exact ten in a shortlist of {shortlist}, "
            f"{int(hits.softmax_rows) / len(best):,.0f} softmax rows, {len(best)} queries"
        )


def _share(expected: np.ndarray, rows: np.ndarray) -> float:
    pairs = zip(np.asarray(expected), np.asarray(rows), strict=True)
    return np.mean([len({*one} & {*other}) / _K for one, other in pairs])


def _words(run: Run | IndexServable, texts: list[str]) -> np.ndarray:
    return pad(run.vocabulary.ids(tf.constant(texts, tf.string)).to_list())


if __name__ == "__main__":
    app.run(main)

"""The speed of the served search, side by side with scoring every pair and bare matrix products.

    python benchmarks/retrieval.py --job_dir runs/best --data data/flickr8k

Needs a trained run: how much can be left out depends on what the network has learned. Images beyond
those of the split are resampled: mixtures of two images of one split, projected anew. Queries are
captions of the validation split. Sides run in turns in one process with all threads and the best
block size of the baselines; the best round counts.

- Scoring: softmax rows per second of log P(s|I) to the matrix products of the same shapes.
- The signature `search_images` of an index, for the ten best images, to scoring every pair.
- Exact search, which finds the same ten, to scoring every pair.
- How both grow with the number of images, and the recall of the exact ten by shortlists.
- The recall of the exact ten sentences of images, in the other direction.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
import timing
from absl import app, flags
from mixtures import mixtures

from export.index_signatures import IndexServable, IndexSettings
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
_QUERIES = flags.DEFINE_integer("queries", 20, "Sentences that are searched for.")
_RECALL_QUERIES = flags.DEFINE_integer("recall_queries", 200, "Sentences that recall is taken of.")
_COUNTS = flags.DEFINE_list("counts", ["1000", "10000", "100000"], "Numbers of images.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Rounds of each side; the best counts.")
_K = 10
_BLOCKS = (512, 1024, 2048, 4096)


def main(_) -> None:
    run = Run.load(_JOB_DIR.value)
    scorer = Scorer(run.network.model)
    split = Split.read(run, _DATA.value, schema.VAL)
    training = Split.read(run, _DATA.value, schema.TRAIN).features
    sample = scorer.project(training[marginal.sample_rows(len(training), 200, 0)])
    texts = [text for own in split.captions for text in own]
    chosen = [texts[row] for row in np.random.default_rng(0).permutation(len(texts))]
    baseline = _score(run, chosen, scorer.project(split.features[:1000]))
    for count in map(int, _COUNTS.value):
        images, _ = mixtures(scorer, split.features, count)
        _search(_servable(run, images, sample, []), baseline, chosen)
    images = scorer.project(split.features)
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


def _score(run: Run, texts: list[str], images: np.ndarray) -> Scorer:
    """Prints rows per second of scoring to those of the products alone; the fastest scorer."""
    words = _words(run, texts[: _QUERIES.value])
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
    score, products = (
        timing.best_seconds({block: side[i] for block, side in sides.items()}, _ROUNDS.value)
        for i in (1, 2)
    )
    block = min(score, key=score.get)
    print(
        f"scoring: {rows / score[block]:,.0f} rows a second in blocks of {block}, "
        f"{min(products.values()) / score[block]:.2f} of the bare products"
    )
    return sides[block][0]


def _search(servable: IndexServable, baseline: Scorer, texts: list[str]) -> None:
    images, searcher = servable.index.images, servable.searcher
    asked = texts[: max(1, _QUERIES.value * 1000 // max(1000, len(images)))]
    words, queries = _words(servable, asked), tf.constant(asked)
    spec = tf.TensorSpec([None], tf.string)
    served = tf.function(servable.search_images, input_signature=[spec]).get_concrete_function()

    def every_pair() -> np.ndarray:
        return baseline.matrix(baseline.read(words), images)

    expected = np.argsort(-every_pair(), axis=1, kind="stable")[:, :_K]
    exact = searcher.search_images(words, _K, None)
    sides = {
        "pairs": every_pair,
        "served": lambda: served(queries),
        "exact": lambda: searcher.search_images(words, _K, None),
    }
    pairs, two_stage, exactly = timing.best_seconds(sides, _ROUNDS.value).values()
    share = int(exact.softmax_rows) / (np.count_nonzero(words) * len(images))
    print(
        f"{len(images):,} images, {len(words)} queries, every pair "
        f"{1e3 * pairs / len(words):,.0f} ms a query: the signature {pairs / two_stage:.1f} times "
        f"as fast; exact {pairs / exactly:.1f} times, with {share:.3f} of the softmax rows and "
        f"{np.mean(exact.rows == expected):.1%} of the ten the same"
    )
    many = _words(servable, texts[: _RECALL_QUERIES.value])
    _recall(lambda shortlist: searcher.search_images(many, _K, shortlist), len(images))


def _recall(search: Callable[[int | None], Hits], items: int) -> None:
    """How many of the exact ten shortlists of several lengths hold."""
    best = search(None).rows.numpy()
    for shortlist in sorted({100, 200, 400, shortlist_size(items)}):
        rows = search(shortlist).rows.numpy()
        recall = np.mean([len({*a} & {*b}) / _K for a, b in zip(best, rows, strict=True)])
        print(f"  {recall:.1%} of the exact ten in a shortlist of {shortlist}, {len(best)} queries")


def _words(run: Run | IndexServable, texts: list[str]) -> np.ndarray:
    return pad(run.vocabulary.ids(tf.constant(texts, tf.string)).to_list())


if __name__ == "__main__":
    app.run(main)

"""The table behind the settings of image search: centres, axes, and the length of a shortlist.

    python benchmarks/shortlists.py --job_dir runs/best --data data/flickr8k --images 100000

For every number of centres and axes: how long a shortlist must be to hold 95, 99 and 100 % of the
exact ten; beside the chosen ones stands the length that `image_shortlist` takes. Then, by how many
likely words a bound sums one by one: the rank of 99 % of the exact ten by these bounds, and how
many candidates of a shortlist can still win when the tenth best is known. Images beyond those of
the split are resampled as in benchmarks/retrieval.py, which measures by other captions.
"""

import numpy as np
import tensorflow as tf
from absl import app, flags
from mixtures import SETTINGS, mixtures, queries

from mrnn_tf import schema
from mrnn_tf.retrieval import expansion as expansions
from mrnn_tf.retrieval import marginal
from mrnn_tf.retrieval.centres import AXES, CENTRES, Centres
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.search import Hits, Searcher, image_shortlist
from mrnn_tf.retrieval.sentences import EncodedSentences, pad
from mrnn_tf.run import Run
from mrnn_tf.split import Split

_JOB_DIR = flags.DEFINE_string("job_dir", None, "A trained run.", required=True)
_DATA = flags.DEFINE_string("data", None, "Its records.", required=True)
_IMAGES = flags.DEFINE_integer("images", 100_000, "Number of images.")
_QUERIES = flags.DEFINE_integer("queries", 40, "Sentences that are searched for.", 1, SETTINGS)
_CENTRES = flags.DEFINE_list("centres", ["1", "2", "4", "8", "16"], "Numbers of centres.")
_AXES = flags.DEFINE_list("axes", ["32", "64", "128", "512"], "Numbers of axes.")
_LIKELY = flags.DEFINE_list("likely", ["0", "32", "64", "128", "256"], "Numbers of likely words.")
_K = 10


def main(_) -> None:
    run = Run.load(_JOB_DIR.value)
    scorer = Scorer(run.network.model)
    split = Split.read(run, _DATA.value, schema.VAL)
    training = Split.read(run, _DATA.value, schema.TRAIN).features
    sample = scorer.project(training[marginal.sample_rows(len(training), 5000, 0)])
    texts = queries(split)[: _QUERIES.value]
    words = pad(run.vocabulary.ids(tf.constant(texts)).to_list())
    images, _ = mixtures(scorer, split.features, _IMAGES.value)
    searcher = Searcher(scorer, Centres.of(sample), images)
    best = searcher.search_images(words, _K, None)
    sentences = scorer.read(words)

    print(f"{len(images):,} images, {len(words)} queries")
    print("| centres | axes | 95 % | 99 % | 100 % |\n|---:|---:|---:|---:|---:|")
    for count in map(int, _CENTRES.value):
        for axes in map(int, _AXES.value):
            centres = Centres.of(sample, count, axes)
            ranks = _ranks(Searcher(scorer, centres, images), sentences, best)
            told = " | ".join(f"{rank:.0f}" for rank in np.quantile(ranks, (0.95, 0.99, 1)))
            is_chosen = (count, axes) == (CENTRES, AXES)
            chosen = f" (chosen: {image_shortlist(len(images))})" if is_chosen else ""
            print(f"| {count} | {axes}{chosen} | {told} |", flush=True)
    _bounds(searcher, sentences, best)


def _ranks(searcher: Searcher, sentences: EncodedSentences, best: Hits) -> np.ndarray:
    """The ranks of the best images by their estimates, from 1."""
    items, ranks = searcher.arrays["images"].shape[0], []
    near = tf.function(searcher._near)
    for query, rows in enumerate(best.rows.numpy()):
        one = EncodedSentences(*(part[query : query + 1] for part in sentences))
        expansion = searcher.scorer.expand_around(one, searcher.arrays["points"])
        order = np.empty(items, np.int64)
        places = near(expansion, items)[0]
        order[tf.gather(searcher.arrays["rows"], places)] = np.arange(1, items + 1)
        ranks += order[rows].tolist()
    return np.array(ranks)


def _bounds(searcher: Searcher, sentences: EncodedSentences, best: Hits) -> None:
    images, readout = searcher.arrays["images"], searcher.scorer.readout
    levels = tuple(map(int, _LIKELY.value))
    expansions.LEVELS = levels
    count = image_shortlist(images.shape[0])
    expansion = expansions.expand_around(readout, sentences, searcher.arrays["points"], levels)
    near = searcher._near(expansion, min(count, images.shape[0]))
    near, values = tf.gather(searcher.arrays["rows"], near), images.value()
    print(f"\n| likely words | rank of 99 % | can win of {count} |\n|---:|---:|---:|")
    for level, likely in enumerate(levels):
        ranks, winners = [], []
        highest = expansions.bounds(expansion, values, near, level).numpy()
        for query, (rows, bounds) in enumerate(zip(best.rows.numpy(), highest, strict=True)):
            order = near[query].numpy()[np.argsort(-bounds)].tolist()
            ranks += [order.index(row) + 1 for row in rows if row in order]
            winners.append((bounds >= best.scores[query, -1]).sum())
        print(f"| {likely} | {np.quantile(ranks, 0.99):.0f} | {np.mean(winners):.0f} |", flush=True)


if __name__ == "__main__":
    app.run(main)

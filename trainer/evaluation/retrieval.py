"""Exact ranks of a whole split in both directions: images by sentence, sentences by image.

Two passes over blocks of sentences. The first scores every sentence by its own image and by the
sampled training images, which gives every normaliser. Then it is known how much a pair needs to
change a rank, and the second pass scores only pairs that can reach it. Every block is saved, so the
same evaluation goes on where it was stopped.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from mrnn_tf import files
from mrnn_tf.config import MEAN, NONE, SAMPLE
from mrnn_tf.consensus import neighbours
from mrnn_tf.errors import UserError
from mrnn_tf.metrics import ranking
from mrnn_tf.progress import Progress
from mrnn_tf.retrieval import marginal, search, sentences
from mrnn_tf.retrieval.centres import Centres
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.run import Run
from mrnn_tf.split import Split
from trainer.options import RetrievalSettings

TEXT_TO_IMAGE, IMAGE_TO_TEXT = "text to image", "image to text"
KIROS = "kiros"  # the row of the normaliser that the paper compares its own with
_BLOCK = 128  # sentences
_BLOCKS_VERSION = 2  # what saved blocks hold; others are not read
_ROUNDING = 1e-3  # of a bound
_TIE = 1e-4  # less is the rounding of two ways to one score
_CURVE_IMAGES = 100  # nearest images whose sentences an image's are found among, for the curve
_QUERIES, _SHOWN = 6, 3  # searches to look at in each direction, and results of each
_SHOWN_AMONG = 100  # images whose sentences they search

SearchExample = tuple[str, list[tuple[str, float, bool]]]  # a query; results, scores, right?
# Name -> arrays [S, ...] of what a function makes of every block of sentences.
InBlocks = Callable[[str, Callable[[np.ndarray], dict]], dict[str, np.ndarray]]


class Normaliser(NamedTuple):
    """How sentences are compared: by (log P(s|I) - log P(s)) / words.

    Kiros et al. divide the perplexity of a sentence by that with the mean image, so that theirs is
    a mean over words; with all other normalisers `words` is 1.
    """

    log_probs: np.ndarray  # what stands for log P(s) [S]
    words: np.ndarray  # [S]

    def scores(self, log_probs: np.ndarray) -> np.ndarray:
        """The scores [S] of sentences with their log P(s|I) [S]."""
        return (log_probs - self.log_probs) / self.words

    def needed(self, scores: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The log P(s|I) [rows, I] with which sentences have the scores [I] of every image."""
        column = rows[:, np.newaxis]
        return self.log_probs[column] + scores * self.words[column]


Normalisers = dict[str, Normaliser]  # the chosen one first


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Exact ranks, and a few searches to look at."""

    figures: dict[str, dict[str, float]]  # the metrics of every row of the table
    curves: dict[str, list[tuple[float, float]]]  # mean share of matches by percentage retrieved
    softmax_share: float  # softmax rows of the second pass, to those of scoring every pair
    searches: dict[str, list[SearchExample]]  # examples by direction
    ranks: dict[str, np.ndarray]  # of the queries of every row: sentences, or images


@dataclasses.dataclass(frozen=True)
class Pool:
    """The images and sentences of a split, projected and numbered."""

    scorer: Scorer
    ids: tuple[str, ...]
    features: np.ndarray  # [I, D]
    images: np.ndarray  # V_I I [I, M]
    texts: list[str]
    words: np.ndarray  # [S, T]
    owner: np.ndarray  # [S], the image of each sentence, in order

    @classmethod
    def of(cls, run: Run, scorer: Scorer, split: Split, limit: int = 0) -> "Pool":
        """The pool of a split, or of its first images; refuses what cannot be ranked."""
        ids, features, captions = (
            values[: limit or None] for values in (split.ids, split.features, split.captions)
        )
        owner = np.repeat(np.arange(len(ids)), [len(own) for own in captions])
        if not len(owner):
            raise UserError(
                f"The split {split.source.split!r} holds no captions: nothing can be ranked."
            )
        bad = np.flatnonzero(~(np.isfinite(features).all(axis=1) & features.any(axis=1)))
        if len(bad):
            raise UserError(f"The features of {ids[bad[0]]} are zero or not finite.")
        texts = [text for own in captions for text in own]
        words = sentences.pad(run.vocabulary.ids(tf.constant(texts, tf.string)).to_list())
        return cls(scorer, ids, features, scorer.project(features), texts, words, owner)

    @functools.cached_property
    def near(self) -> np.ndarray:
        """Whether image j is among the nearest of image i, itself included: bool [I, I]."""
        count = min(_CURVE_IMAGES, len(self.ids))
        features = self.scorer.model.comparable(self.features)
        rows, _ = neighbours.NeighbourSearch(features)(features, count)
        near = np.eye(len(self.ids), dtype=bool)
        np.put_along_axis(near, rows, True, axis=1)
        return near

    def per_image(self, reduce: np.ufunc, values: np.ndarray) -> np.ndarray:
        """The values [S] of an image's sentences reduced to one [I]; infinity where it has none."""
        images, first = np.unique(self.owner, return_index=True)
        reduced = np.full(len(self.ids), np.inf)
        reduced[images] = reduce.reduceat(values, first)
        return reduced


def rank_split(
    run: Run, split: Split, training_features: np.ndarray, settings: RetrievalSettings, work: str
) -> Ranking:
    """The exact ranks of a split, and a few searches in it.

    P(s) takes a sample of the training images, whose features are [n, D]. The folder `work` holds
    the blocks; it is removed in the end.
    """
    scorer = Scorer(run.network.model)
    pool = Pool.of(run, scorer, split, settings.images)
    rows = marginal.sample_rows(len(training_features), settings.sample, settings.sample_seed)
    if not np.isfinite(training_features[rows]).all():
        raise UserError("`training_features` must be finite; a row holds NaN or infinity.")
    sample = scorer.project(training_features[rows])
    mean = sample.mean(axis=0)
    facts = [run.config.to_dict(), run.step, split.source.info.fingerprint, split.source.split]
    facts += [settings.normaliser, settings.images, marginal.SCORED, _BLOCKS_VERSION]
    key = hashlib.sha256(json.dumps(facts).encode() + sample.tobytes()).hexdigest()[:16]
    in_blocks = functools.partial(_in_blocks, len(pool.words), tf.io.gfile.join(work, key))

    own, normalisers = _first_pass(pool, sample, in_blocks)
    chosen = normalisers[settings.normaliser]
    normalisers = {settings.normaliser: chosen} | normalisers
    scores, share = _second_pass(pool, mean, own, normalisers, in_blocks)
    ranks = _ranks(pool, own, scores, normalisers)
    figures = {row: ranking.summary(values) for row, values in ranks.items()}
    curves = _curves(pool, ranks[TEXT_TO_IMAGE], scores, chosen)
    tf.io.gfile.rmtree(work)
    examples = _search_some(pool, Centres.of(sample), chosen.log_probs)
    return Ranking(figures, curves, share, examples, ranks)


def _in_blocks(
    count: int, folder: str, name: str, compute: Callable[[np.ndarray], dict]
) -> dict[str, np.ndarray]:
    """What `compute` makes of the rows of every block; blocks that are saved are read again."""
    rows, blocks = np.arange(count), []
    for first in Progress(range(0, count, _BLOCK), name, unit=" blocks"):
        path = tf.io.gfile.join(folder, f"{name.replace(' ', '-')}-{first:07d}.npz")
        if not tf.io.gfile.exists(path):
            files.write_arrays(path, **compute(rows[first : first + _BLOCK]))
        blocks.append(files.read_arrays(path))
    return {key: np.concatenate([block[key] for block in blocks]) for key in blocks[0]}


def _first_pass(
    pool: Pool, sample: np.ndarray, in_blocks: InBlocks
) -> tuple[np.ndarray, Normalisers]:
    """log P [S] of every sentence by its own image, and what may stand for log P(s)."""
    scorer = pool.scorer

    def compute(rows: np.ndarray) -> dict:
        words, owner = pool.words[rows], pool.owner[rows]
        _, _, at_mean, marginals = search.SentenceTable.of(scorer, words, sample)
        own = scorer.pairs(scorer.read(words), np.arange(len(rows)), pool.images, owner).numpy()
        normalisers = {SAMPLE: marginals, MEAN: at_mean}
        return {"own": own, **normalisers, NONE: np.zeros(len(rows))}

    arrays = in_blocks("own and sampled images", compute)
    for name, values in arrays.items():
        if not np.isfinite(values).all():  # every comparison with it would be false
            raise UserError(f"log P(s) by {name!r} is not finite: the weights of the run are not.")
    arrays = {name: values.astype(np.float64) for name, values in arrays.items()}
    own, words = arrays.pop("own"), np.count_nonzero(pool.words, axis=1)
    normalisers = {name: Normaliser(values, np.ones(len(own))) for name, values in arrays.items()}
    return own, {**normalisers, KIROS: Normaliser(arrays[MEAN], words.astype(np.float64))}


def _second_pass(
    pool: Pool, mean: np.ndarray, own: np.ndarray, normalisers: Normalisers, in_blocks: InBlocks
) -> tuple[np.ndarray, float]:
    """Every log P(s|I) [S, I] that matters to a rank, and the share of softmax rows."""
    scorer, images = pool.scorer, tf.constant(pool.images)
    best = [(norm, pool.per_image(np.maximum, norm.scores(own))) for norm in normalisers.values()]
    chosen = next(iter(normalisers.values()))
    worst = pool.per_image(np.minimum, chosen.scores(own))

    def thresholds(rows: np.ndarray) -> np.ndarray:
        """How much log P [rows, I] a pair needs to matter to any rank."""
        column = rows[:, np.newaxis]
        is_near = pool.near[:, pool.owner[rows]].T  # is the sentence's image near the query image?
        needed = [own[column], np.where(is_near, chosen.needed(worst, rows), np.inf)]
        needed += [norm.needed(highest, rows) for norm, highest in best]
        return functools.reduce(np.minimum, needed) - _ROUNDING

    def compute(rows: np.ndarray) -> dict:
        sentences = scorer.read(pool.words[rows])
        expansion = scorer.expand_around(sentences, mean[np.newaxis])
        log_probs, used = scorer.at_least(sentences, expansion, images, thresholds(rows))
        used += np.count_nonzero(pool.words[rows])  # of the expansion
        return {"log_probs": log_probs.numpy(), "rows": np.full(len(rows), used / len(rows))}

    arrays = in_blocks("other images", compute)
    every = np.count_nonzero(pool.words) * len(pool.images)
    return arrays["log_probs"], float(arrays["rows"].sum() / every)


def _ranks(
    pool: Pool, own: np.ndarray, scores: np.ndarray, normalisers: Normalisers
) -> dict[str, np.ndarray]:
    """The ranks of the queries of every row; completes the scores [S, I]."""
    if np.isnan(scores).any():  # every comparison with it would be false
        raise UserError("log P(s|I) is NaN for some sentence and image: nothing can be ranked.")
    scores[np.arange(len(own)), pool.owner] = own
    ranks = {TEXT_TO_IMAGE: 1 + (scores > own[:, np.newaxis] + _TIE).sum(axis=1)}
    asked, sentences = np.unique(pool.owner), np.arange(len(own))
    for name, norm in normalisers.items():
        best = pool.per_image(np.maximum, norm.scores(own))
        of_images = 1 + (scores > norm.needed(best, sentences) + _TIE).sum(axis=0)
        ranks[f"{IMAGE_TO_TEXT}, {name}"] = of_images[asked]
    return ranks


def _curves(
    pool: Pool, of_sentences: np.ndarray, scores: np.ndarray, norm: Normaliser
) -> dict[str, list[tuple[float, float]]]:
    """The mean shares of matches by direction.

    Sentences are searched among those of the nearest images, the protocol of IAPR TC-12.
    """
    near_ranks, counts = [], []
    normalised = scores - norm.log_probs[:, np.newaxis]
    for image in np.unique(pool.owner):
        others = normalised[pool.near[image, pool.owner], image]
        mine = normalised[pool.owner == image, image]
        near_ranks.append(1 + (others > mine[:, np.newaxis] + _TIE).sum(axis=1))
        counts.append(len(others))
    all_images = [len(pool.images)] * len(of_sentences)
    by_sentence = ranking.match_curve(of_sentences[:, np.newaxis], all_images)
    by_image = ranking.match_curve(near_ranks, counts)
    return {TEXT_TO_IMAGE: by_sentence, IMAGE_TO_TEXT: by_image}


def _search_some(pool: Pool, centres: Centres, norm: np.ndarray) -> dict[str, list[SearchExample]]:
    """Searches by sentences and images from all over the pool."""
    scorer = pool.scorer
    chosen = np.unique(np.linspace(0, len(pool.owner) - 1, _QUERIES).astype(int))
    queries = np.unique(pool.owner[chosen])
    # The sentences of some images are enough to show; those of all were ranked above.
    among = np.flatnonzero((pool.owner < _SHOWN_AMONG) | np.isin(pool.owner, queries))
    expansion = scorer.expand(scorer.read(pool.words[among]), centres.mean)
    at_mean = expansion.log_probs.numpy().sum(axis=1)
    table = search.SentenceTable(pool.words[among], expansion.vectors.numpy(), at_mean, norm[among])
    searcher = search.Searcher(scorer, centres, pool.images, table)
    by_sentence = searcher.search_images(pool.words[chosen], _SHOWN).found()
    by_image = searcher.search_sentences(pool.images[queries], _SHOWN).found()
    return {
        TEXT_TO_IMAGE: [
            (pool.texts[query], [(pool.ids[i], score, bool(i == pool.owner[query]))
                                 for i, score in hits])
            for query, hits in zip(chosen, by_sentence, strict=True)
        ],
        IMAGE_TO_TEXT: [
            (pool.ids[image], [(pool.texts[i], score, bool(pool.owner[i] == image))
                               for i, score in ((among[row], score) for row, score in hits)])
            for image, hits in zip(queries, by_image, strict=True)
        ],
    }  # fmt: skip

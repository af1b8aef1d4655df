"""Exact ranks of a whole split in both directions: images by sentence, sentences by image.

Two passes over blocks of sentences. The first scores every sentence by its own image and by the
sampled training images, which gives every normaliser. Then it is known how much a pair needs to
change a rank, and the second pass scores only pairs that can reach it. Every block is saved, so the
same evaluation goes on where it was stopped.
"""

import dataclasses
import hashlib
import io
import json
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from mrnn_tf import files
from mrnn_tf.consensus import neighbours
from mrnn_tf.data import pipeline
from mrnn_tf.errors import UserError
from mrnn_tf.metrics import ranking
from mrnn_tf.retrieval import exact, marginal
from mrnn_tf.retrieval.expansion import expand
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.sentences import blocks, read
from mrnn_tf.run import Run
from trainer.pool import Pool, load, sampled_images
from trainer.searches import Searches, search_some

TEXT_TO_IMAGE, IMAGE_TO_TEXT = "text to image", "image to text"
_BLOCK = 128  # sentences
_OWN = "own"
_ROUNDING = 1e-3  # of a bound
_TIE = 1e-4  # less is the rounding of two ways to one score
_CURVE_IMAGES = 100  # nearest images whose sentences an image's are found among, for the curve


@dataclasses.dataclass(frozen=True)
class Settings:
    """How sentences are normalised, and how many images take part."""

    normaliser: str = marginal.SAMPLE
    sample: int = marginal.SAMPLE_SIZE
    seed: int = 0
    images: int = 0  # the first so many of the split; 0 for all


@dataclasses.dataclass(frozen=True)
class Ranks:
    """What the evaluation found.

    Attributes:
        scores: for every row of the table its figures.
        curves: the mean share of matches by the percentage retrieved, for both directions.
        rows: softmax rows of the second pass, to those of scoring every pair word by word.
    """

    scores: dict[str, dict[str, float]]
    curves: dict[str, list[tuple[float, float]]]
    rows: float


def evaluate(
    run: Run, source: pipeline.Source, reference_data: str, settings: Settings, work: str
) -> tuple[Ranks, Searches]:
    """The exact ranks of a split, and a few searches in it.

    Args:
        run: Run.
        source: pipeline.Source. The split.
        reference_data: str. Records with the training split, for the sampled images.
        settings: Settings.
        work: str. Folder for the blocks; it is removed in the end.
    """
    scorer = Scorer(run.network.model)
    if settings.normaliser == marginal.NULL and scorer.model.no_image is None:
        raise UserError(
            "--normaliser null: the run was trained without a null image (--image_dropout)."
        )
    pool = load(run, scorer, source, settings.images)
    if not len(pool.owner):
        raise UserError(f"The split {source.split!r} holds no captions: nothing can be ranked.")
    if not (np.isfinite(pool.features).all() and pool.features.any(axis=1).all()):
        raise UserError(f"The split {source.split!r} holds features that are no numbers or zero.")
    sample = sampled_images(run, scorer, reference_data, settings.sample, settings.seed)
    key = [run.config.to_dict(), run.step, source.info.fingerprint, source.split]
    key += [dataclasses.asdict(settings)]
    blocked = _Blocks(pool, work, hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16])

    first = _first_pass(scorer, pool, sample, blocked)
    normalisers = _normalisers(first, settings)
    near = _near(pool)
    thresholds = _thresholds(pool, first[_OWN], normalisers, near)
    scores = _second_pass(scorer, pool, sample.mean(axis=0), thresholds, blocked)
    rows = blocked.rows / (np.count_nonzero(pool.words) * len(pool.images))
    ranks = _ranks(pool, first[_OWN], scores, normalisers, near, rows)
    blocked.remove()
    chosen = next(iter(normalisers.values()))
    return ranks, search_some(scorer, pool, sample.mean(axis=0), chosen)


class _Blocks:
    """Blocks of sentences that are computed once, saved, and read again after a stop."""

    def __init__(self, pool: Pool, work: str, key: str):
        self._blocks = list(blocks(pool.words, _BLOCK))
        self._folder, self._root = tf.io.gfile.join(work, key), work
        self.rows = 0.0

    def run(self, name: str, compute: Callable[[np.ndarray], dict]) -> list[tuple]:
        """The rows of every block and what `compute` makes of them."""
        tf.io.gfile.makedirs(self._folder)
        found = []
        for number, rows in enumerate(tqdm(self._blocks, name, unit=" blocks", disable=None)):
            path = tf.io.gfile.join(self._folder, f"{name.replace(' ', '-')}-{number:05d}.npz")
            if not tf.io.gfile.exists(path):
                content = io.BytesIO()
                np.savez(content, **compute(rows))
                files.write_whole(path, content.getvalue())
            with tf.io.gfile.GFile(path, "rb") as file, np.load(io.BytesIO(file.read())) as arrays:
                found.append((rows, dict(arrays)))
        return found

    def remove(self) -> None:
        tf.io.gfile.rmtree(self._root)


def _first_pass(scorer: Scorer, pool: Pool, sample: np.ndarray, blocked: _Blocks) -> dict:
    """log P [S] of every sentence by its own image, and what may stand for log P(s)."""
    model, mean = scorer.model, sample.mean(axis=0)
    null = None if model.no_image is None else model.null_image(1)["multimodal"].numpy()

    def compute(rows: np.ndarray) -> dict:
        some = read(model, pool.words[rows])
        expansion = expand(scorer, some, mean)
        found = {
            _OWN: scorer.pairs(some, np.arange(len(rows)), pool.images, pool.owner[rows]),
            marginal.SAMPLE: marginal.log_marginals(scorer, some, expansion, sample),
            marginal.MEAN: expansion.log_probs.sum(axis=1),
            marginal.NONE: np.zeros(len(rows)),
        }
        return found if null is None else found | {marginal.NULL: scorer.matrix(some, null)[:, 0]}

    found = blocked.run("own and sampled images", compute)
    order = np.argsort(np.concatenate([rows for rows, _ in found]))
    return {
        name: np.concatenate([arrays[name] for _, arrays in found]).astype(np.float64)[order]
        for name in found[0][1]
    }


def _normalisers(first: dict[str, np.ndarray], settings: Settings) -> dict[str, np.ndarray]:
    """What each row of the table takes off log P(s|I), the chosen one first."""
    names = [settings.normaliser, *(n for n in marginal.NORMALISERS if n != settings.normaliser)]
    return {name: first[name] for name in names if name in first}


def _thresholds(
    pool: Pool, own: np.ndarray, normalisers: dict[str, np.ndarray], near: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """How much log P [rows, I] a pair needs to matter to any rank."""
    image_count = len(pool.images)
    best = {name: _per_image(np.maximum, own - norm, pool.owner, image_count, -np.inf)
            for name, norm in normalisers.items()}  # fmt: skip
    chosen = next(iter(normalisers))
    worst = _per_image(np.minimum, own - normalisers[chosen], pool.owner, image_count, np.inf)

    def of(rows: np.ndarray) -> np.ndarray:
        least = np.repeat(own[rows][:, np.newaxis], image_count, axis=1)
        for name, norm in normalisers.items():
            # An image without sentences asks for none.
            needed = np.where(np.isfinite(best[name]), best[name], np.inf) + norm[rows, np.newaxis]
            least = np.minimum(least, needed)
        listed = near[:, pool.owner[rows]].T  # is the sentence's image near the query image?
        needed = worst + normalisers[chosen][rows, np.newaxis]
        return np.where(listed, np.minimum(least, needed), least) - _ROUNDING

    return of


def _near(pool: Pool) -> np.ndarray:
    """Whether image j is among the nearest of image i, itself included: bool [I, I]."""
    count = min(_CURVE_IMAGES, len(pool.features))
    rows, _ = neighbours.nearest(pool.features, pool.features, count)
    near = np.eye(len(pool.features), dtype=bool)
    near[np.arange(len(near))[:, np.newaxis], rows] = True
    return near


def _second_pass(
    scorer: Scorer,
    pool: Pool,
    mean: np.ndarray,
    thresholds: Callable[[np.ndarray], np.ndarray],
    blocked: _Blocks,
) -> np.ndarray:
    """Every log P(s|I) [S, I] that reaches its threshold."""

    def compute(rows: np.ndarray) -> dict:
        before = scorer.rows
        some = read(scorer.model, pool.words[rows])
        expansion = expand(scorer, some, mean)
        found = exact.at_least(scorer, some, expansion, pool.images, thresholds(rows))
        return {"log_probs": found, "rows": scorer.rows - before}

    scores = np.empty((len(pool.owner), len(pool.images)), np.float32)
    for rows, arrays in blocked.run("other images", compute):
        scores[rows] = arrays["log_probs"]
        blocked.rows += int(arrays["rows"])
    return scores


def _ranks(
    pool: Pool,
    own: np.ndarray,
    scores: np.ndarray,
    normalisers: dict[str, np.ndarray],
    near: np.ndarray,
    rows: float,
) -> Ranks:
    sentence = np.arange(len(own))
    scores[sentence, pool.owner] = own
    of_sentences = 1 + (scores > own[:, np.newaxis] + _TIE).sum(axis=1)
    table = {TEXT_TO_IMAGE: ranking.summary(of_sentences)}
    asked = np.unique(pool.owner)
    chosen = next(iter(normalisers))
    for name, norm in normalisers.items():
        normalised = scores - norm[:, np.newaxis]
        best = _per_image(np.maximum, own - norm, pool.owner, len(pool.images), -np.inf)
        ranks = 1 + (normalised[:, asked] > best[asked] + _TIE).sum(axis=0)
        table[f"{IMAGE_TO_TEXT}, {name}"] = ranking.summary(ranks)
    curves = {
        TEXT_TO_IMAGE: ranking.match_curve(
            of_sentences[:, np.newaxis], [len(pool.images)] * len(own)
        ),
        IMAGE_TO_TEXT: _near_curve(pool, scores - normalisers[chosen][:, np.newaxis], near, asked),
    }
    return Ranks(table, curves, rows)


def _near_curve(
    pool: Pool, normalised: np.ndarray, near: np.ndarray, asked: np.ndarray
) -> list[tuple[float, float]]:
    """Matches among the sentences of the nearest images, the protocol of IAPR TC-12."""
    ranks, counts = [], []
    for image in asked:
        listed = near[image, pool.owner]
        others = normalised[listed, image]
        mine = normalised[pool.owner == image, image]
        ranks.append(1 + (others > mine[:, np.newaxis] + _TIE).sum(axis=1))
        counts.append(int(listed.sum()))
    return ranking.match_curve(ranks, counts)


def _per_image(reduce, values, owner, count: int, empty: float) -> np.ndarray:
    found = np.full(count, empty)
    reduce.at(found, owner, values)
    return found

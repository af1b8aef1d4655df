"""The images and sentences of a split, as retrieval ranks them, and the sampled training images."""

import dataclasses

import numpy as np
import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.data import pipeline
from mrnn_tf.retrieval import marginal
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.sentences import pad
from mrnn_tf.run import Run


@dataclasses.dataclass(frozen=True)
class Pool:
    """The images and sentences of a split, projected and numbered."""

    ids: list[str]
    features: np.ndarray  # [I, D]
    images: np.ndarray  # V_I I [I, M]
    texts: list[str]
    words: np.ndarray  # [S, T]
    owner: np.ndarray  # [S], the image of each sentence


def load(run: Run, scorer: Scorer, source: pipeline.Source, limit: int = 0) -> Pool:
    """Reads a split, or its first images."""
    ids, features, texts, owner = [], [], [], []
    for batch in run.network.images(source, 64):
        features.append(run.network.features(batch).numpy())
        for image_id, captions in zip(
            batch["ids"].numpy(), batch["captions"].to_list(), strict=True
        ):
            owner += [len(ids)] * len(captions)
            texts += [caption.decode(errors="replace") for caption in captions]
            ids.append(image_id.decode())
        if limit and len(ids) >= limit:
            break
    count = min(limit, len(ids)) if limit else len(ids)
    owner = np.array([i for i in owner if i < count], np.int64)
    texts = texts[: len(owner)]
    features = np.concatenate(features)[:count]
    words = pad(run.vocabulary.ids(tf.constant(texts, tf.string)).to_list())
    return Pool(ids[:count], features, scorer.project(features), texts, words, owner)


def sampled_images(run: Run, scorer: Scorer, data: str, size: int, seed: int) -> np.ndarray:
    """V_I I [n, M] of sampled training images of a dataset."""
    source = run.source(data, schema.TRAIN)
    chosen = marginal.sample_rows(source.info.splits[schema.TRAIN].images, size, seed)
    wanted, first, found = set(chosen.tolist()), 0, []
    for batch in run.network.images(source, 64):
        rows = [i for i in range(len(batch["ids"])) if first + i in wanted]
        first += len(batch["ids"])
        if rows:
            found.append(run.network.features(batch).numpy()[rows])
    return scorer.project(np.concatenate(found))

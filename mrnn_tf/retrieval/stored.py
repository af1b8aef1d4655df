"""Search in two places: the shortlist comes from a vector database, exact scores from the model.

The model is whatever answers its signatures `sentence_vector` and `score_projections`: TF Serving
through `serving.client`, or a `Captioner` in this process. Nothing here needs TensorFlow.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mrnn_tf import schema
from mrnn_tf.errors import UserError
from mrnn_tf.retrieval.milvus import MilvusStore

K = 10
_ROWS_AT_ONCE = 256  # of a request; the largest that serving/deploy's batching.config allows

# From a signature and its inputs to its outputs.
Predict = Callable[[str, Mapping[str, np.ndarray | Sequence[str]]], Mapping[str, np.ndarray]]
Hit = tuple[str, float]  # an id and log P(s|I)


def shortlist_size(images: int) -> int:
    """How many images hold 99 % of the exact ten, by vectors at the mean image."""
    return max(200, round(4 * images**0.5))


def search(
    store: MilvusStore,
    predict: Predict,
    sentences: Sequence[str],
    k: int = K,
    filter: str = "",
    shortlist: int = 0,
) -> list[list[Hit]]:
    """The k images of a store with the highest log P(s|I) of every sentence, best first.

    A sentence without a word that the model knows finds nothing. `shortlist` images are scored
    exactly, by default as many as their number asks for; `filter` is one of `MilvusStore.nearest`.
    """
    if k < 1 or shortlist < 0:
        raise UserError(f"`k` must be at least 1 and `shortlist` 0; received {k} and {shortlist}.")
    vectors = predict(schema.SENTENCE_VECTOR, {schema.SENTENCES: sentences})[schema.VECTORS]
    asked = np.flatnonzero(vectors.any(axis=1))
    results = [[] for _ in sentences]
    if len(asked):
        count = max(k, shortlist or shortlist_size(store.count()))
        nearest = store.nearest(vectors[asked], count, filter)
        for row, (ids, projections) in zip(asked.tolist(), nearest, strict=True):
            scores = _score(predict, sentences[row], projections)
            best = np.argsort(-scores, kind="stable")[:k].tolist()
            results[row] = [(ids[place], float(scores[place])) for place in best]
    return results


def _score(predict: Predict, sentence: str, projections: np.ndarray) -> np.ndarray:
    """log P [n] of a sentence by images [n, M]."""
    scores = [np.zeros(0, np.float32)]
    for first in range(0, len(projections), _ROWS_AT_ONCE):
        block = projections[first : first + _ROWS_AT_ONCE]
        inputs = {schema.PROJECTIONS: block, schema.SENTENCES: [sentence] * len(block)}
        scores.append(predict(schema.SCORE_PROJECTIONS, inputs)[schema.LOG_PROB])
    return np.concatenate(scores)

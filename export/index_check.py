"""What the signatures of an index should say, by the library's own search in its arrays.

Images that are alike have equal scores, and whichever comes first is right: where the results found
have the scores that they should have, they are what is expected.
"""

import numpy as np

from export.check import Tensors, same
from export.index_signatures import IndexServable
from mrnn_tf import decode, schema
from mrnn_tf.config import BeamSearch
from mrnn_tf.consensus.reranking import Comparison, RerankSettings
from mrnn_tf.metrics.nbest import NBest
from mrnn_tf.model.layers import scaled_tanh
from mrnn_tf.retrieval.search import Found, search_images, search_sentences
from mrnn_tf.retrieval.sentences import pad

Results = tuple[list[tuple[bytes, ...]], np.ndarray]  # what may be found, and its scores


def expected(servable: IndexServable, name: str, inputs: Tensors, found: Tensors) -> Tensors:
    """The outputs of a signature for all rows of its inputs."""
    if name == schema.SERVING_DEFAULT:
        name = servable.default
    score = schema.CONSENSUS if name == schema.CAPTION_RERANKED else schema.SCORES
    compute, texts = {
        schema.SEARCH_IMAGES: (_search_images, [schema.IDS]),
        schema.SEARCH_SENTENCES: (_search_sentences, [schema.SENTENCES, schema.IDS]),
        schema.SIMILAR_IMAGES: (_similar_images, [schema.IDS]),
        schema.CAPTION_RERANKED: (_caption_reranked, [schema.CAPTIONS]),
    }[name]
    [queries] = inputs.values()
    rows = []
    for row, query in enumerate(queries):
        results, scores = compute(servable, query)
        there = list(zip(*(found[text][row].tolist() for text in texts), strict=True))
        rows.append(_ranked(results, scores, there, found[score].shape[1], len(texts)))
    columns = {
        text: np.array([[result[at] for result in best] for best, _ in rows], object)
        for at, text in enumerate(texts)
    }
    return {**columns, score: np.stack([scores for _, scores in rows])}


def _ranked(
    results: list[tuple], scores: np.ndarray, found: list[tuple], k: int, width: int
) -> tuple[list[tuple], np.ndarray]:
    """The k best results and their scores, padded; equals are in the order found."""
    order = np.argsort(-scores, kind="stable")[:k]
    best = [results[at] for at in order]
    for rank, at in enumerate(order):
        equal = [s for r, s in zip(results, scores, strict=True) if r == found[rank]]
        if any(same(np.float32(score), np.float32(scores[at])) for score in equal):
            best[rank] = found[rank]
    more = k - len(best)
    padded = np.append(scores[order], np.full(more, schema.MISSING_LOG_PROB))
    return [*best, *[(b"",) * width] * more], padded.astype(np.float32)


def _search_images(servable: IndexServable, sentence: str) -> Results:
    index = servable.index
    listed = servable.settings.listed(len(index.images))
    words = pad(servable.vocabulary.ids([sentence]).to_list())
    found = search_images(servable.scorer, words, index.images, index.mean, listed, listed)
    rows, scores = _there(found)
    return [(index.ids[row],) for row in rows], scores


def _search_sentences(servable: IndexServable, features: np.ndarray) -> Results:
    index = servable.index
    listed = servable.settings.listed(len(index.captions))
    image = servable.scorer.project(features[np.newaxis])
    found = search_sentences(servable.scorer, index.table, image, index.mean, listed, listed)
    rows, scores = _there(found)
    owners = [index.ids[owner] if owner >= 0 else b"" for owner in index.owners[rows]]
    return list(zip((index.captions[row] for row in rows), owners, strict=True)), scores


def _similar_images(servable: IndexServable, features: np.ndarray) -> Results:
    index = servable.index
    refined = servable.network.model.refined(features[np.newaxis]).numpy()
    scores = -np.linalg.norm(scaled_tanh(index.images).numpy() - refined, axis=1)
    return [(each,) for each in index.ids], scores


def _caption_reranked(servable: IndexServable, features: np.ndarray) -> Results:
    model, settings, reranker = servable.network.model, servable.settings, servable.reranker
    image = model.project_image(features[np.newaxis])
    found = decode.beam(
        *decode.begin(model, image),
        BeamSearch(settings.beam, settings.max_words, settings.length_power),
    )
    there = found.log_probs[0] > schema.MISSING_LOG_PROB
    captions = servable.vocabulary.sentences(found.ids[0][there]).numpy().tolist()
    refined = scaled_tanh(image["multimodal"]).numpy()
    near = reranker.neighbourhood.nearest(refined, settings.neighbours)
    n_best = {0: NBest(tuple(caption.decode() for caption in captions))}
    compared = Comparison("cider", reranker.corpus)(n_best, near)
    scores = compared.scores("cider", RerankSettings(settings.neighbours))[0]
    return [(caption,) for caption in captions], scores


def _there(found: Found) -> tuple[np.ndarray, np.ndarray]:
    """The rows and scores that one query found."""
    there = found.rows[0] >= 0
    return found.rows[0][there], found.scores[0][there]

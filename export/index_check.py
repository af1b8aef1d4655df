"""What the signatures of an index should say, by the Keras model and not by the exported search.

Every score is computed again. Where the shortlist holds everything, the results must be the best of
all by these scores; else the scores and the order of those found are checked. Images that are
alike have equal scores, and whichever comes first is right.
"""

import functools

import numpy as np
import tensorflow as tf

from export.check import Tensors, model_info, same
from export.index_signatures import IndexServable
from mrnn_tf import decode, schema
from mrnn_tf.consensus.reranking import Comparison, RerankSettings
from mrnn_tf.metrics.nbest import NBest
from mrnn_tf.model.layers import scaled_tanh
from mrnn_tf.retrieval.search import listed

Result = tuple[bytes, ...]  # the texts of a result
Scored = list[tuple[Result, float]]
_PAIRS_AT_ONCE = 64


def expected(servable: IndexServable, name: str, inputs: Tensors, found: Tensors) -> Tensors:
    """The outputs of a signature for all rows of its inputs."""
    if name == schema.SERVING_DEFAULT:
        name = servable.default
    if name == schema.MODEL_INFO:
        rows = [model_info(servable, key)[schema.VALUES] for key in inputs[schema.KEYS]]
        return {schema.VALUES: np.stack(rows)}
    compute, *texts, score = {
        schema.SEARCH_IMAGES: (_images, schema.IDS, schema.SCORES),
        schema.SEARCH_IMAGES_EXACT: (_images, schema.IDS, schema.SCORES),
        schema.SEARCH_PREFIX: (_images_by_prefix, schema.IDS, schema.SCORES),
        schema.SEARCH_SENTENCES: (_sentences, schema.SENTENCES, schema.IDS, schema.SCORES),
        schema.SIMILAR_IMAGES: (_similar_images, schema.IDS, schema.SCORES),
        schema.CAPTION_RERANKED: (_caption_reranked, schema.CAPTIONS, schema.CONSENSUS),
    }[name]
    [queries] = inputs.values()
    if name == schema.CAPTION_RERANKED:  # all queries are decoded at once
        queries = list(zip(queries, _decoded(servable, queries), strict=True))
        compute = functools.partial(compute, Comparison("cider", servable.corpus))
    rows = []
    for row, query in enumerate(queries):
        results = list(zip(*(found[text][row].tolist() for text in texts), strict=True))
        rows.append(_ranked(compute(servable, query, results), results))
    best, scores = zip(*rows, strict=True)
    columns = np.moveaxis(np.array(best, object), -1, 0)  # [texts, queries, K]
    values = {**dict(zip(texts, columns, strict=True)), score: np.stack(scores)}
    if name == schema.SEARCH_PREFIX:
        values[schema.WORD_SCORES] = _word_scores(servable, queries, found[schema.IDS])
    return values


def _ranked(scored: Scored, found: list[Result]) -> tuple[list[Result], np.ndarray]:
    """The best results and their scores, padded; equals are in the order found."""
    missing = [((b"",) * len(found[0]), schema.MISSING_LOG_PROB)] * len(found)
    best = [*sorted(scored, key=lambda result: -result[1]), *missing][: len(found)]
    results, scores = [result for result, _ in best], np.float32([score for _, score in best])
    for rank, wanted in enumerate(scores):
        equals = [score for result, score in scored if result == found[rank]]
        if any(same(np.float32(score), wanted) for score in equals):
            results[rank] = found[rank]
    return results, scores


def _images(servable: IndexServable, sentence: str, found: list[Result]) -> Scored:
    return _by_words(servable, sentence, found, servable.settings.max_text_words, [schema.END_ID])


def _images_by_prefix(servable: IndexServable, prefix: str, found: list[Result]) -> Scored:
    return _by_words(servable, prefix, found, servable.settings.max_prefix_words, [])


def _by_words(
    servable: IndexServable, text: str, found: list[Result], max_words: int, end: list[int]
) -> Scored:
    [ids] = servable.vocabulary.ids([text]).to_list()
    if len(ids) > max_words or not set(ids) - {schema.UNKNOWN_ID}:
        return []
    names = [(image_id,) for image_id in servable.index.ids]
    rows = _compared(servable, names, found)
    scores = _log_probs(servable, np.array([ids + end] * len(rows)), servable.index.images[rows])
    return [(names[row], score) for row, score in zip(rows, scores, strict=True)]


def _word_scores(servable: IndexServable, prefixes: np.ndarray, found: np.ndarray) -> np.ndarray:
    """log P [B, K, T] of every word of the prefixes by the images found [B, K]."""
    index, rows = servable.index, {image_id: row for row, image_id in enumerate(servable.index.ids)}
    scores = np.zeros((*found.shape, servable.settings.max_prefix_words), np.float32)
    for query, prefix in enumerate(prefixes):
        [ids] = servable.vocabulary.ids([prefix]).to_list()
        ranks = np.flatnonzero(found[query] != b"")
        if len(ranks):
            images = index.images[[rows[image_id] for image_id in found[query][ranks]]]
            words = np.repeat([ids], len(ranks), axis=0)
            scores[query, ranks, : len(ids)] = _word_log_probs(servable, words, images)
    return scores


def _sentences(servable: IndexServable, features: np.ndarray, found: list[Result]) -> Scored:
    index = servable.index
    ids = [*index.ids, b""]  # the last is that of no image
    names = [(text, ids[own]) for text, own in zip(index.captions, index.owners, strict=True)]
    rows = _compared(servable, names, found)
    image = servable.network.model.project_image(features[np.newaxis])["multimodal"].numpy()
    scores = _log_probs(servable, index.words[rows], np.repeat(image, len(rows), axis=0))
    scores -= index.log_marginals[rows]
    return [(names[row], score) for row, score in zip(rows, scores, strict=True)]


def _compared(servable: IndexServable, names: list[Result], found: list[Result]) -> list[int]:
    """The rows to score again: all where the shortlist holds all, else those found."""
    settings = servable.settings
    if listed(len(names), settings.k, settings.shortlist) == len(names):
        return list(range(len(names)))
    row_of = {name: row for row, name in enumerate(names)}
    return [row_of[result] for result in found if result in row_of]


def _log_probs(servable: IndexServable, words: np.ndarray, images: np.ndarray) -> np.ndarray:
    """log P [P] of sentences [P, T] by images a [P, M], by the layers of the Keras model."""
    scores = np.zeros(len(words))
    for first in range(0, len(words), _PAIRS_AT_ONCE):
        block = slice(first, first + _PAIRS_AT_ONCE)
        scores[block] = _word_log_probs(servable, words[block], images[block]).sum(axis=1)
    return scores


def _word_log_probs(servable: IndexServable, words: np.ndarray, images: np.ndarray) -> np.ndarray:
    """As `_log_probs`, of every word [P, T], zero at padding."""
    model = servable.network.model
    inputs = np.pad(words[:, :-1], [(0, 0), (1, 0)], constant_values=schema.START_ID)
    logits = model.logits_from(model.word_part(inputs), {"multimodal": images})
    chosen = tf.gather(tf.nn.log_softmax(logits), words, batch_dims=2).numpy()
    return np.where(words != schema.PAD_ID, chosen, 0.0)


def _similar_images(servable: IndexServable, features: np.ndarray, found: list[Result]) -> Scored:
    names = [(image_id,) for image_id in servable.index.ids]
    rows = _compared(servable, names, found)
    refined = servable.network.model.refined(features[np.newaxis]).numpy()
    theirs = scaled_tanh(servable.index.images[rows]).numpy()
    scores = -np.linalg.norm(theirs - refined, axis=1)
    return [(names[row], score) for row, score in zip(rows, scores, strict=True)]


def _decoded(servable: IndexServable, features: np.ndarray) -> list[list[bytes]]:
    """The captions of every image by the beam search."""
    model = servable.network.model
    image = model.project_image(features)
    decoded = decode.beam(*decode.begin(model, image), servable.settings)
    sentences = servable.vocabulary.sentences(decoded.ids).numpy()
    is_sentence = decoded.log_probs.numpy() > schema.MISSING_LOG_PROB
    return [own[there].tolist() for own, there in zip(sentences, is_sentence, strict=True)]


def _caption_reranked(
    comparison: Comparison, servable: IndexServable, query: tuple[np.ndarray, list[bytes]], _
) -> Scored:
    features, captions = query
    refined = servable.network.model.refined(features[np.newaxis]).numpy()
    near = servable.neighbourhood.nearest(refined, servable.settings.neighbours)
    n_best = {0: NBest(tuple(caption.decode() for caption in captions))}
    settings = RerankSettings(servable.settings.neighbours)
    scores = comparison(n_best, near).scores("cider", settings)[0]
    return [((caption,), score) for caption, score in zip(captions, scores, strict=True)]

"""What the signatures of an index should say, from its arrays by NumPy and the library's scorer.

Images that are alike have equal scores, and whichever comes first is right: where the results found
have the scores that they should have, they are what is expected.
"""

import numpy as np

from export.check import Tensors, same
from export.index_signatures import IndexServable
from mrnn_tf import decode, schema
from mrnn_tf.model.layers import scaled_tanh
from mrnn_tf.retrieval import sentences
from mrnn_tf.retrieval.consensus import Comparison, M
from mrnn_tf.retrieval.expansion import expand
from mrnn_tf.retrieval.neighbours import nearest

Results = tuple[list[tuple[bytes, ...]], np.ndarray]  # what may be found, and its scores
_NOTHING: Results = [], np.zeros(0, np.float32)


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
    ids = servable.vocabulary.ids([sentence]).to_list()
    if all(word == schema.UNKNOWN_ID for word in ids[0]):
        return _NOTHING
    index, scorer = servable.index, servable.scorer
    read = sentences.read(servable.network.model, sentences.pad(ids))
    [vector] = expand(scorer, read, index.mean).vectors
    near = _highest(index.images @ vector, servable)
    scores = scorer.pairs(read, np.zeros_like(near), index.images[near], np.arange(len(near)))
    return [(index.ids[row],) for row in near], scores


def _search_sentences(servable: IndexServable, features: np.ndarray) -> Results:
    index, scorer = servable.index, servable.scorer
    image = scorer.project(features[np.newaxis])
    told = index.vectors @ (image[0] - index.mean)
    near = _highest(index.mean_log_probs - index.log_marginals + told, servable)
    read = sentences.read(servable.network.model, np.asarray(index.words[near]))
    scores = scorer.pairs(read, np.arange(len(near)), image, np.zeros_like(near))
    owners = [index.ids[owner] if owner >= 0 else b"" for owner in index.owners[near]]
    texts = [index.captions[row] for row in near]
    return list(zip(texts, owners, strict=True)), scores - index.log_marginals[near]


def _similar_images(servable: IndexServable, features: np.ndarray) -> Results:
    index = servable.index
    refined = servable.network.model.refined(features[np.newaxis]).numpy()
    scores = -np.linalg.norm(scaled_tanh(index.images).numpy() - refined, axis=1)
    near = _highest(scores, servable)
    return [(index.ids[row],) for row in near], scores[near]


def _caption_reranked(servable: IndexServable, features: np.ndarray) -> Results:
    index, model, settings = servable.index, servable.network.model, servable.settings
    numbers, corpus = servable.reranker.numbers, servable.reranker.corpus
    image = model.project_image(features[np.newaxis])
    found = decode.beam(
        *decode.begin(model, image, copies=settings.beam),
        width=settings.beam,
        length_power=settings.length_power,
        max_words=settings.max_words,
    )
    there = found.log_probs[0] > schema.MISSING_LOG_PROB
    captions = servable.vocabulary.sentences(found.ids[0][there]).numpy().tolist()
    images = scaled_tanh(index.images[numbers >= 0]).numpy()
    near, _ = nearest(scaled_tanh(image["multimodal"]).numpy(), images, settings.neighbours)
    compared = Comparison("cider", corpus)([each.decode() for each in captions], near[0])
    scores = compared.by_neighbours(settings.neighbours, M["cider"])
    return [(caption,) for caption in captions], scores


def _highest(scores: np.ndarray, servable: IndexServable) -> np.ndarray:
    size = max(servable.settings.k, servable.settings.shortlist)
    return np.argsort(-scores, kind="stable")[:size]

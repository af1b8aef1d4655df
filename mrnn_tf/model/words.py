"""Words by their meaning to the model: distances in word embedding layer II."""

import numpy as np

from mrnn_tf import schema
from mrnn_tf.errors import UserError
from mrnn_tf.model.mrnn import MRNN
from mrnn_tf.text import Vocabulary


def nearest_words(
    model: MRNN, vocabulary: Vocabulary, word: str, k: int = 10
) -> list[tuple[str, float]]:
    """The `k` words nearest to a word by Euclidean distance, nearest first, without itself."""
    if word not in vocabulary.words:
        raise UserError(f"`word` must be of the vocabulary; {word!r} is not.")
    vectors = np.asarray(model.word_vectors(), np.float64)
    own = vocabulary.words.index(word)
    distances = np.linalg.norm(vectors - vectors[own], axis=1)
    distances[[own, *range(len(schema.RESERVED_WORDS))]] = np.inf
    order = np.argsort(distances, kind="stable")[:k]
    return [(vocabulary.words[i], float(distances[i])) for i in order if np.isfinite(distances[i])]

import numpy as np
import pytest

from mrnn_tf import schema
from mrnn_tf.config import ModelConfig
from mrnn_tf.model.mrnn import MRNN
from mrnn_tf.model.words import nearest_words
from mrnn_tf.text import Vocabulary


def test_nearest_words_by_distance_in_embedding_two():
    vocabulary = Vocabulary((*schema.RESERVED_WORDS, "dog", "puppy", "car", "cat"))
    model = MRNN(ModelConfig(embedding_1=2, embedding_2=2, recurrent=2, multimodal=2), 8, 3)
    first = np.array([[0, 0]] * 4 + [[0, 0], [1, 0], [9, 9], [0, 2]], np.float32)
    model.embedding_1.set_weights([first])
    model.embedding_2.set_weights([np.array([[0, 3], [1, 0]], np.float32)])  # turned and stretched
    assert nearest_words(model, vocabulary, "dog", 2) == [("cat", 2.0), ("puppy", 3.0)]
    assert [word for word, _ in nearest_words(model, vocabulary, "car", 9)] == [
        "puppy", "cat", "dog",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="'zebra' is not"):
        nearest_words(model, vocabulary, "zebra")

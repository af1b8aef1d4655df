import numpy as np
import pytest
import searching

from mrnn_tf import schema
from mrnn_tf.config import CELLS
from mrnn_tf.model import WIRINGS
from mrnn_tf.retrieval import sentences, softmax
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.sentences import EncodedSentences

SEARCHABLE = [
    name for name, wiring in WIRINGS.items() if wiring.image_to and not wiring.recurrence_sees_image
]


@pytest.mark.parametrize("rows", [4, 4096])
@pytest.mark.parametrize("variant", SEARCHABLE)
def test_a_matrix_is_what_the_model_says_of_every_pair(variant, rows, monkeypatch):
    monkeypatch.setattr(softmax, "ROWS", rows)
    scorer, read, images, expected = searching.searched(variant, 9, 6)
    np.testing.assert_allclose(scorer.matrix(read, images), expected, atol=1e-4)
    row, column = np.divmod(np.arange(expected.size), len(images))
    found = scorer.pairs(read, row, images, column).numpy().reshape(expected.shape)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("cell", CELLS)
def test_every_cell_is_scored_alike(cell):
    scorer, read, images, expected = searching.searched("mrnn", 5, 4, cell=cell)
    np.testing.assert_allclose(scorer.matrix(read, images), expected, atol=1e-4)


def test_nothing_is_scored_of_nothing():
    scorer, read, images, _ = searching.searched(sentence_count=3, image_count=2)
    assert scorer.matrix(read, images[:0]).shape == (3, 0)
    assert scorer.matrix(EncodedSentences(*(part[:0] for part in read)), images).shape == (0, 2)
    nothing = np.zeros(0, np.int64)
    assert scorer.pairs(read, nothing, images, nothing).shape == (0,)


@pytest.mark.parametrize("variant", sorted(set(WIRINGS) - set(SEARCHABLE)))
def test_a_variant_that_cannot_be_searched_is_refused(variant):
    with pytest.raises(ValueError, match=f"`{variant}` cannot be searched"):
        Scorer(searching.network(variant))


def test_features_of_another_size_are_refused():
    scorer = Scorer(searching.network())
    with pytest.raises(
        ValueError, match=r"`features` must be an array \[images, 9\]; got \[2, 8\]"
    ):
        scorer.project(np.ones((2, 8), np.float32))


def test_sentences_are_padded_behind_their_end_sign():
    found = sentences.pad([[5, 6], [], [7]])
    end, pad = schema.END_ID, schema.PAD_ID
    assert found.tolist() == [[5, 6, end], [end, pad, pad], [7, end, pad]]

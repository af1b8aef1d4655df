"""CIDEr-D as the reward has it: sentences by the references of their image."""

import numpy as np
import plain
import pytest
from pycocoevalcap.cider.cider import Cider

from mrnn_tf.consensus.ngrams import Corpus
from mrnn_tf.consensus.similarity import CiderD

REFERENCES = {
    1: ["a dog runs on the green grass", "the dog is running", "a dog"],
    2: ["two men sit on a bench", "men sitting on the bench on a street", "the two men sit there"],
    3: ["a red car", "a car drives on the street", "the the the car"],
}
RESULTS = {1: ["a dog runs on the grass"], 2: ["two men sit on the the the street"], 3: ["boat"]}


@pytest.fixture(scope="module")
def cider():
    return CiderD(Corpus.of(REFERENCES.values()))


def test_it_is_pycocoevalcaps(cider):
    _, expected = Cider().compute_score(REFERENCES, RESULTS)
    found = cider.to_sentences(list(RESULTS.values()), list(REFERENCES.values())).numpy()
    found = found.mean(axis=(1, 2))
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert found[0] > found[1] > found[2] == 0.0


def test_frequencies_are_those_of_the_corpus():
    corpus = [["a dog"], ["a cat"], ["a cat runs"]]
    sentences = ["a dog", "a cat", "a dog cat", "a bird dog", "bird cat"]
    [found] = CiderD(Corpus.of(corpus)).to_sentences([sentences], [sentences]).numpy()
    np.testing.assert_allclose(found, plain.table(plain.cider(corpus), sentences, sentences))
    # Words weigh 0 (a), log 3 (dog) and log 3/2 (cat); a bigram that the corpus lacks weighs log 3.
    unigrams = np.log(3) / np.hypot(np.log(3), np.log(3 / 2))
    bigrams = 1 / np.sqrt(2)
    assert found[0, 2] == pytest.approx(10 / 4 * (unigrams + bigrams) * np.exp(-1 / 72))


def test_empty_sentences_score_nothing(cider):
    assert not cider.to_sentences([["", "a dog"]], [["", ""]]).numpy().any()
    assert cider.to_sentences([["", "a dog"]], [["a dog", ""]]).numpy()[0].tolist()[0] == [0.0, 0.0]


def test_an_empty_corpus_is_refused():
    with pytest.raises(ValueError, match="`corpus`"):
        CiderD(Corpus.of([]))

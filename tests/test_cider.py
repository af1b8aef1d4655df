import numpy as np
import pytest
from pycocoevalcap.cider.cider import Cider

from mrnn_tf.metrics.cider import CiderD

REFERENCES = {
    1: ["a dog runs on the green grass", "the dog is running", "a dog"],
    2: ["two men sit on a bench", "men sitting on the bench on a street", "the two men sit there"],
    3: ["a red car", "a car drives on the street", "the the the car"],
}
RESULTS = {1: ["a dog runs on the grass"], 2: ["two men sit on the the the street"], 3: ["boat"]}


def test_it_is_pycocoevalcaps():
    _, expected = Cider().compute_score(REFERENCES, RESULTS)
    cider = CiderD(REFERENCES.values())
    found = [cider.score(RESULTS[i][0], REFERENCES[i]) for i in REFERENCES]
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert found[0] > found[1] > found[2] == 0.0


def test_frequencies_are_those_of_the_corpus():
    cider = CiderD([["a dog"], ["a cat"], ["a cat runs"]])
    dog, cat = cider.vector("dog"), cider.vector("cat")
    assert cider.vector("a").weights[("a",)] == 0.0
    assert dog.weights[("dog",)] == pytest.approx(np.log(3))
    assert cat.weights[("cat",)] == pytest.approx(np.log(3 / 2))
    assert cider.vector("bird").weights[("bird",)] == pytest.approx(np.log(3))


def test_empty_sentences_score_nothing():
    cider = CiderD(REFERENCES.values())
    assert cider.score("", REFERENCES[1]) == 0.0
    assert cider.score("a dog", [""]) == 0.0


def test_an_empty_corpus_is_refused():
    with pytest.raises(ValueError, match="`corpus`"):
        CiderD([])

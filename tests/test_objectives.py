import numpy as np
import pytest
import tensorflow as tf
import tiny

from mrnn_tf import run, schema, text
from mrnn_tf.config import ModelConfig, RunConfig, TrainConfig
from mrnn_tf.metrics.cider import CiderD
from mrnn_tf.model import loss
from trainer import objectives

CORPUS = [tiny.captions_of(i % 3, i % 4) for i in range(12)]


@pytest.fixture(scope="module")
def vocabulary():
    return text.Vocabulary.build([caption for some in CORPUS for caption in some], min_count=1)


@pytest.fixture(scope="module")
def network(vocabulary):
    sizes = {"embedding_1": 3, "embedding_2": 4, "recurrent": 4, "multimodal": 5}
    encoder = {"identity": tiny.IDENTITY, "feature_size": tiny.FEATURE_SIZE}
    model, size = ModelConfig(**sizes), tiny.FEATURE_SIZE
    return run.build(RunConfig(model, TrainConfig(), len(vocabulary), size, encoder, "x"))


def features(rows):
    return np.random.default_rng(0).normal(size=(rows, tiny.FEATURE_SIZE)).astype(np.float32)


def test_likelihood_is_the_cost_of_the_paper(network):
    ids = np.array([[1, 5, 6], [1, 7, 0]])
    targets = np.array([[5, 6, 2], [7, 2, 0]])
    batch = {schema.FEATURES: features(2), schema.WORD_IDS: ids, schema.TARGET_IDS: targets}
    objective = objectives.Likelihood()
    tf.random.set_seed(1)
    terms = objective.terms(network, batch, tf.constant(0))
    assert float(terms.words) == float(terms.count) == 5.0
    assert float(terms.cost) == float(terms.total) > 0
    told = objective.measured(3.0)
    assert told == {"perplexity": 8.0, "cost": 3.0}


def test_rewards_are_the_cider_of_what_was_drawn(network, vocabulary):
    objective = objectives.ExpectedCider(CORPUS, vocabulary, samples=3, seed=0)
    tokenised = [[caption.lower().strip(".") + " </s>" for caption in some] for some in CORPUS]
    drawn = [[b"a red dog", b"a red boat", b""], [b"there is", b"a green cat here", b"we"]]
    references = [[b"a red dog", b""], [b"a green cat", b"there is a green cat here"]]
    drawn, references = np.array(drawn, object), np.array(references, object)
    cider = CiderD(tokenised)
    expected = [
        [
            cider.score(
                sentence.decode() + " </s>", [f"{each.decode()} </s>" for each in row if each]
            )
            for sentence in some
        ]
        for some, row in zip(drawn, references, strict=True)
    ]
    np.testing.assert_allclose(objective._rewards(drawn, references), expected, rtol=1e-5)
    assert expected[0][0] > expected[0][1] > expected[0][2] == 0.0


def test_captions_above_the_others_become_more_probable(network, vocabulary, monkeypatch):
    objective = objectives.ExpectedCider(CORPUS, vocabulary, samples=4, seed=0, max_words=5)
    batch = {schema.FEATURES: features(2), "captions": np.array([["A red dog."], ["A cat"]])}
    seen = {}

    def rewards(sentences, references):
        seen["sentences"], seen["references"] = sentences, references
        return np.float32([[1, 0, 0, 0], [2, 2, 2, 2]])

    monkeypatch.setattr(objective, "_rewards", rewards)
    original, costs = loss.sentence_costs, []

    def sentence_costs(logits, ids):
        costs.append(original(logits, ids))
        return costs[-1]

    monkeypatch.setattr(objectives.loss, "sentence_costs", sentence_costs)
    terms = objective.terms(network, batch, tf.constant(0))
    [(bits, words)] = costs
    advantages = np.float32([1, -1 / 3, -1 / 3, -1 / 3, 0, 0, 0, 0])
    np.testing.assert_allclose(terms.cost, np.sum(advantages * bits), rtol=1e-5)
    assert float(terms.words) == float(tf.reduce_sum(words))
    assert (float(terms.total), float(terms.count)) == (9.0, 8.0)
    assert seen["references"].tolist() == [[b"a red dog"], [b"a cat"]]
    assert seen["sentences"].shape == (2, 4)

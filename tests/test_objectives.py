import numpy as np
import plain
import pytest
import tensorflow as tf
import tiny

from mrnn_tf import decode, run, schema, text
from mrnn_tf.config import BeamSearch, ModelConfig, RunConfig, TrainConfig
from trainer import objectives

CORPUS = [tiny.captions_of(i % 3, i % 4) for i in range(12)]


@pytest.fixture(scope="module")
def vocabulary():
    return text.Vocabulary.build([caption for some in CORPUS for caption in some], min_count=1)


@pytest.fixture(scope="module")
def network(vocabulary):
    return build(vocabulary)


def build(vocabulary, **changes):
    sizes = {"embedding_1": 3, "embedding_2": 4, "recurrent": 4, "multimodal": 5}
    encoder = {"identity": tiny.IDENTITY, "feature_size": tiny.FEATURE_SIZE}
    still = {"dropout_embedding": 0.0, "dropout_recurrent": 0.0, "dropout_multimodal": 0.0}
    model, size = ModelConfig(**sizes, **still, **changes), tiny.FEATURE_SIZE
    return run.build(RunConfig(model, TrainConfig(), len(vocabulary), size, encoder, "x"))


def features(rows):
    return np.random.default_rng(0).normal(size=(rows, tiny.FEATURE_SIZE)).astype(np.float32)


def test_likelihood_is_the_cost_of_the_paper(network):
    ids = np.array([[1, 5, 6], [1, 7, 0]])
    targets = np.array([[5, 6, 2], [7, 2, 0]])
    batch = {schema.FEATURES: features(2), schema.WORD_IDS: ids, schema.TARGET_IDS: targets}
    objective = objectives.Likelihood()
    tf.random.set_seed(1)
    terms = objective.terms(network, batch)
    assert float(terms.words) == float(terms.count) == 5.0
    assert float(terms.cost) == float(terms.total) > 0
    told = objective.measured(3.0)
    assert told == {"perplexity": 8.0, "cost": 3.0}


def test_rewards_are_the_cider_of_what_was_found(network, vocabulary):
    objective = objectives.ExpectedCider(CORPUS, vocabulary, width=3)
    tokenised = [[caption.lower().strip(".") + " </s>" for caption in some] for some in CORPUS]
    found = [["a red dog", "a red boat", ""], ["there is", "a green cat here", "we"], ["a"] * 3]
    references = [["a red dog", ""], ["a green cat", "there is a green cat here"], ["", ""]]
    cider = plain.cider(tokenised)
    expected = [
        [
            np.mean([cider(f"{sentence} </s>", f"{each} </s>") for each in row if each] or [0.0])
            for sentence in some
        ]
        for some, row in zip(found, references, strict=True)
    ]
    raw = [[caption.upper() + "." for caption in row] for row in references]
    np.testing.assert_allclose(objective._rewards(found, raw), expected, rtol=1e-5)
    assert expected[0][0] > expected[0][1] > expected[0][2] == 0.0


def test_probability_moves_to_captions_that_score_above_the_others(
    network, vocabulary, monkeypatch
):
    objective = objectives.ExpectedCider(CORPUS, vocabulary, width=4, max_words=5)
    batch = {schema.FEATURES: features(2), "captions": np.array([["A red dog."], ["A cat"]])}
    given = np.float32([[1, 0, 0, 0], [2, 2, 2, 2]])
    seen = {}

    def rewards(sentences, captions):
        seen["sentences"], seen["captions"] = sentences.numpy(), captions
        return tf.constant(given)

    monkeypatch.setattr(objective, "_rewards", rewards)
    with tf.GradientTape() as tape:
        terms = objective.terms(network, batch)
    assert seen["captions"].tolist() == [["A red dog."], ["A cat"]]
    assert all(len(set(row)) == 4 for row in seen["sentences"].tolist())
    # A sum over images is divided by images, however many words they have.
    assert float(terms.total) == -float(terms.cost) and float(terms.count) == 2.0
    words = [len(sentence.split()) + 1 for sentence in seen["sentences"].flat]
    assert float(terms.words) == sum(words) > 8

    shares = np.exp(log_probs(network, vocabulary, batch, seen["sentences"]))
    shares /= shares.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(terms.total, np.sum(shares * given), rtol=1e-4)
    [variables] = network.trainable_parts()
    gradients = tape.gradient(terms.cost, variables)
    before = [variable.numpy() for variable in variables]
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
    after = np.exp(log_probs(network, vocabulary, batch, seen["sentences"]))
    after /= after.sum(axis=1, keepdims=True)
    assert after[0, 0] > shares[0, 0]
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)


@pytest.mark.parametrize("variant", ["mrnn", "vis_in_rnn_both", "nic"])
def test_search_and_score_see_the_same_dropped_features(variant, vocabulary, monkeypatch):
    network, twin = (build(vocabulary, variant=variant, dropout_features=0.5) for _ in range(2))
    objective = objectives.ExpectedCider(CORPUS, vocabulary, width=3, max_words=4)
    batch = {schema.FEATURES: features(2), "captions": np.array([["A red dog."], ["A cat"]])}
    given = np.float32([[1, 2, 4], [3, 1, 0]])
    monkeypatch.setattr(objective, "_rewards", lambda sentences, references: given)
    terms = objective.terms(network, batch)
    image = twin.model.project_image(batch[schema.FEATURES], training=True)
    n_best = decode.beam(*decode.begin(twin.model, image), BeamSearch(beam=3, max_words=4))
    shares = tf.nn.softmax(n_best.log_probs)
    np.testing.assert_allclose(terms.total, np.sum(shares * given), rtol=1e-4)
    assert int(network.model.dropout_features.calls.value) == 1


def log_probs(network, vocabulary, batch, sentences):
    """log P of every sentence of every image, read one by one."""
    found = np.zeros(sentences.shape)
    for (row, place), sentence in np.ndenumerate(sentences):
        ids = [*vocabulary.ids([sentence])[0].numpy(), schema.END_ID]
        inputs = {
            schema.FEATURES: batch[schema.FEATURES][row : row + 1],
            schema.WORD_IDS: np.array([[schema.START_ID, *ids[:-1]]]),
        }
        logits = tf.nn.log_softmax(network.model(inputs)[0]).numpy()
        found[row, place] = logits[np.arange(len(ids)), ids].sum()
    return found

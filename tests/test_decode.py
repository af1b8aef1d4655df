import itertools
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from official.nlp.modeling.ops import beam_search

from mrnn_tf import decode, schema
from mrnn_tf.config import VARIANTS, BeamSearch, ModelConfig
from mrnn_tf.errors import UserError
from mrnn_tf.model.mrnn import MRNN

A, B = 4, 5
END = schema.END_ID
SIZES = {"embedding_1": 3, "embedding_2": 4, "recurrent": 4, "multimodal": 5}


def chain(table):
    """A step function without memory: row i holds the probabilities after word i."""
    logits = tf.math.log(tf.constant(table, tf.float32))
    return lambda ids, state: (tf.gather(logits, ids), state)


def start(rows):
    return [tf.zeros([rows, 1])], tf.fill([rows], schema.START_ID)


TABLE = np.full((6, 6), 1e-6)
TABLE[schema.START_ID, [A, schema.UNKNOWN_ID]] = [0.3, 0.7]
TABLE[A, [B, END]] = [0.8, 0.2]
TABLE[B, [END, A]] = [0.6, 0.4]


def tiny_model(variant="mrnn", vocabulary=9, scale=3.0):
    """A model with weights large enough to make up its mind."""
    model = MRNN(ModelConfig(variant=variant, feature_norm=0.0, **SIZES), vocabulary, 7, seed=1)
    for weight in model.trainable_variables:
        weight.assign(weight * scale)
    return model


def features(rows=5):
    return np.random.default_rng(0).normal(size=(rows, 7)).astype(np.float32)


def by_hand(model, image_features, *sentences):
    """log P of each word of some sentences, read at once and not step by step."""
    longest = max(map(len, sentences))
    targets = np.array([[*words, *[0] * (longest - len(words))] for words in sentences])
    inputs = np.insert(targets[:, :-1], 0, schema.START_ID, axis=1)
    images = np.repeat(image_features[np.newaxis], len(sentences), axis=0)
    logits = model({schema.FEATURES: images, schema.WORD_IDS: inputs})
    found = tf.gather(tf.nn.log_softmax(logits), targets, batch_dims=2).numpy()
    return [row[: len(words)] for row, words in zip(found, sentences, strict=True)]


def wide(width, max_words=20, length_power=0.0):
    return BeamSearch(width, max_words, length_power)


def beam_of(model, image_features, prefix=None, width=3, n_best=None, **settings):
    @tf.function
    def search():
        image = model.project_image(image_features)
        return decode.beam(*decode.begin(model, image, prefix), wide(width, **settings), n_best)

    return search()


def test_greedy_takes_the_best_word_and_never_an_unknown_one():
    found = decode.greedy(chain(TABLE), *start(2), max_words=5)
    assert found.ids.numpy().tolist() == [[[A, B, END, 0, 0, 0]]] * 2
    np.testing.assert_allclose(found.log_probs, [[np.log(0.3 * 0.8 * 0.6)]] * 2, rtol=1e-4)
    words = np.log([0.3, 0.8, 0.6])
    np.testing.assert_allclose(found.word_log_probs[0, 0], [*words, 0, 0, 0], rtol=1e-4)


def test_a_cut_sentence_pays_for_its_end():
    found = decode.greedy(chain(TABLE), *start(1), max_words=1)
    assert found.ids.numpy().tolist() == [[[A, END]]]
    np.testing.assert_allclose(found.log_probs, [[np.log(0.3 * 0.2)]], rtol=1e-4)
    found = decode.beam(chain(TABLE), *start(2), wide(2, max_words=1))
    assert found.ids[0, 0].numpy().tolist() == [A, END]
    np.testing.assert_allclose(found.log_probs[0, 0], np.log(0.3 * 0.2), rtol=1e-4)


def test_a_search_stops_when_its_sentences_are_decided():
    steps = tf.Variable(0)

    def counted(ids, state):
        steps.assign_add(1)
        return chain(TABLE)(ids, state)

    decode.greedy(counted, *start(2), max_words=500)
    assert steps.numpy() == 3
    steps.assign(0)
    decode.beam(counted, *start(2), wide(2, max_words=500), n_best=1)
    assert steps.numpy() < 10


@pytest.mark.parametrize("length_power", [0.0, 0.7, 1.0])
def test_a_wide_beam_finds_what_enumeration_finds(length_power):
    model, image_features = tiny_model(vocabulary=7), features(2)
    found = beam_of(
        model, image_features, width=60, n_best=10, length_power=length_power, max_words=4
    )
    for row in range(2):
        everything = [words for n in range(5) for words in itertools.product((4, 5, 6), repeat=n)]
        log_probs = by_hand(model, image_features[row], *([*words, END] for words in everything))
        scored = [
            (each.sum() / len(each) ** length_power, each.sum(), words)
            for each, words in zip(log_probs, everything, strict=True)
        ]
        scored.sort(reverse=True)
        np.testing.assert_allclose(
            found.log_probs[row], [each[1] for each in scored[:10]], rtol=1e-5
        )
        for place, (_, _, words) in enumerate(scored[:10]):
            expected = [*words, END] + [0] * (4 - len(words))
            assert found.ids[row, place].numpy().tolist() == expected


@pytest.mark.parametrize("seed", range(5))
def test_the_best_sentence_is_the_one_of_model_garden(seed):
    rng = np.random.default_rng(seed)
    table = rng.dirichlet(np.full(12, 0.3), size=12) + 1e-9
    table[:, [schema.PAD_ID, schema.START_ID, schema.UNKNOWN_ID]] = 1e-12
    logits = tf.math.log(tf.constant(table / table.sum(1, keepdims=True), tf.float32))
    width, longest = 8, 8
    theirs, scores = beam_search.sequence_beam_search(
        lambda ids, i, cache: (tf.gather(logits, ids[:, -1]), cache),
        initial_ids=tf.constant([schema.START_ID]),
        initial_cache={"nothing": tf.zeros([1, 1])},
        vocab_size=12,
        beam_size=width,
        alpha=0.0,
        max_decode_length=longest,
        eos_id=END,
    )
    ours = decode.beam(
        lambda ids, state: (tf.gather(logits, ids), state),
        *start(1),
        wide(width, max_words=longest - 1),
    )
    assert ours.log_probs[0, 0] >= scores[0, 0] - 1e-5
    length = int(tf.math.count_nonzero(ours.ids[0, 0]))
    np.testing.assert_array_equal(ours.ids[0, 0, :length], theirs[0, 0, 1 : length + 1])


def test_the_list_is_complete_distinct_and_in_order():
    found = beam_of(tiny_model(), features(3), width=10, max_words=8)
    assert (found.log_probs.numpy() > -1e3).all()
    assert (np.diff(found.log_probs.numpy(), axis=1) <= 0).all()
    for sentences in found.ids.numpy().tolist():
        assert len(set(map(tuple, sentences))) == 10
    assert not np.isin(found.ids, [schema.START_ID, schema.UNKNOWN_ID]).any()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_probabilities_are_the_models_own(variant):
    model, image_features = tiny_model(variant), features(2)
    image = model.project_image(image_features)
    greedy = decode.greedy(*decode.begin(model, image), max_words=6)
    drawn = decode.sample(
        *decode.begin(model, image), seed=3, temperature=2.0, copies=2, max_words=6
    )
    for found in (greedy, drawn, beam_of(model, image_features, max_words=6)):
        for row in range(2):
            for place in range(found.ids.shape[1]):
                sentence = found.ids[row, place].numpy()
                sentence = sentence[sentence != schema.PAD_ID]
                assert sentence[-1] == END
                [expected] = by_hand(model, image_features[row], sentence)
                got = found.word_log_probs[row, place].numpy()
                np.testing.assert_allclose(got[: len(sentence)], expected, rtol=1e-4, atol=1e-5)
                assert not got[len(sentence) :].any()
                np.testing.assert_allclose(found.log_probs[row, place], got.sum(), rtol=1e-5)


def test_the_other_images_of_a_batch_change_nothing():
    model, image_features = tiny_model(), features(7)
    together = beam_of(model, image_features, max_words=9)
    for row in range(7):
        alone = beam_of(model, image_features[row : row + 1], max_words=9)
        np.testing.assert_array_equal(alone.ids[0], together.ids[row])
        np.testing.assert_allclose(alone.log_probs[0], together.log_probs[row], rtol=1e-5)


def test_a_prefix_is_read_whatever_the_others_lengths():
    model, image_features = tiny_model(), features(3)
    prefix = tf.constant([[6, 7, schema.UNKNOWN_ID], [8, 0, 0], [0, 0, 0]])
    together = beam_of(model, image_features, prefix, max_words=5)
    for row, words in enumerate([[6, 7, schema.UNKNOWN_ID], [8], []]):
        sentence = together.ids[row, 0].numpy()
        sentence = sentence[sentence != schema.PAD_ID]
        [expected] = by_hand(model, image_features[row], [*words, *sentence])
        expected = expected[len(words) :]
        np.testing.assert_allclose(
            together.word_log_probs[row, 0, : len(sentence)], expected, rtol=1e-4
        )
    without = beam_of(model, image_features[2:], max_words=5)
    np.testing.assert_array_equal(together.ids[2], without.ids[0])


def test_an_image_of_no_numbers_has_no_sentence_and_harms_no_other():
    model, image_features = tiny_model(), features(3)
    image_features[1, 2] = np.nan
    clean = beam_of(model, image_features[::2])
    image = model.project_image(image_features)
    for found in (
        beam_of(model, image_features),
        decode.greedy(*decode.begin(model, image)),
        decode.sample(*decode.begin(model, image), seed=0),
    ):
        assert not found.ids[1].numpy().any()
        assert not found.word_log_probs[1].numpy().any()
        assert (found.log_probs[1].numpy() == np.float32(schema.MISSING_LOG_PROB)).all()
        assert found.ids.numpy()[::2].any()
    np.testing.assert_array_equal(beam_of(model, image_features).ids.numpy()[::2], clean.ids)


def test_a_beam_may_be_wider_than_the_vocabulary():
    found = beam_of(tiny_model(vocabulary=6), features(1), width=20, max_words=2)
    there = found.log_probs[0].numpy() > schema.MISSING_LOG_PROB
    assert there.tolist() == [True] * 7 + [False] * 13  # two words: 1 + 2 + 4 sentences
    assert not found.ids[0, 7:].numpy().any()


def test_draws_follow_the_probabilities_and_the_seed():
    table = np.full((6, 6), 1e-9)
    table[schema.START_ID, [A, B, END]] = [0.5, 0.3, 0.2]
    table[[A, B], END] = 1.0

    def draw(seed=0, **settings):
        found = decode.sample(chain(table), *start(1), seed=seed, copies=2000, **settings)
        return found.ids[0, :, 0].numpy().tolist()

    def share(words):
        return [Counter(words)[word] / len(words) for word in (A, B, END)]

    np.testing.assert_allclose(share(draw()), [0.5, 0.3, 0.2], atol=0.04)
    cold = np.array([0.5, 0.3, 0.2]) ** 2
    np.testing.assert_allclose(share(draw(temperature=0.5)), cold / cold.sum(), atol=0.04)
    np.testing.assert_allclose(share(draw(top_k=2)), [0.625, 0.375, 0.0], atol=0.04)
    np.testing.assert_allclose(share(draw(top_p=0.6)), [0.625, 0.375, 0.0], atol=0.04)
    assert share(draw(top_p=0.4)) == [1.0, 0.0, 0.0]
    assert draw(seed=5) == draw(seed=5) != draw(seed=6)


@pytest.mark.parametrize("settings", [{"beam": 0}, {"max_words": 0}, {"length_power": -0.1}])
def test_searches_that_cannot_be_made_are_refused(settings):
    with pytest.raises(UserError, match=next(iter(settings))):
        BeamSearch(**settings)


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_draws_that_cannot_be_made_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        decode.sample(chain(TABLE), *start(1), seed=0, **settings)


@pytest.mark.parametrize("variant", ["mrnn", "rnn_base", "nic"])
def test_evidence_is_what_the_image_adds(variant):
    model, image_features = tiny_model(variant), features(2)
    mean = image_features.mean(0)
    prefix = tf.constant([[5, 0], [6, 7]])
    found = beam_of(model, image_features, prefix, max_words=5)
    blank = model.project_image(np.stack([mean, mean]))
    evidence = decode.evidence(model, blank, found, prefix).numpy()
    for row, words in enumerate([[5], [6, 7]]):
        sentence = found.ids[row, 1].numpy()
        sentence = [*words, *sentence[sentence != schema.PAD_ID]]
        [seen], [unseen] = (by_hand(model, each, sentence) for each in (image_features[row], mean))
        expected = (seen - unseen)[len(words) :]
        np.testing.assert_allclose(evidence[row, 1, : len(expected)], expected, atol=1e-4)
        assert not evidence[row, 1, len(expected) :].any()
    if variant == "rnn_base":
        np.testing.assert_allclose(evidence, 0.0, atol=1e-5)

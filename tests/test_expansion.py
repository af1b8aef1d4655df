import numpy as np
import pytest
import searching
import tensorflow as tf

from mrnn_tf.retrieval import expansion as expansions


@pytest.fixture(scope="module", params=["mrnn", "mrnn_shared"])
def expanded(request):
    scorer, read, images, expected = searching.searched(request.param)
    # Of 23 words none, 4 and 16 are summed one by one.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expansions, "LEVELS", (0, 4, 16))
        points = images[:3]
        local = expansions.expand_around(scorer.readout, read, points, expansions.LEVELS)
        yield scorer, read, images, expected, points, local


def every_bound(local, images, level=-1):
    columns = tf.range(len(images))[tf.newaxis]
    return expansions.bounds(local, tf.constant(images), columns, level).numpy()


def test_no_score_is_above_its_bounds_and_every_level_is_tighter(expanded):
    _, _, images, expected, _, local = expanded
    gaps = []
    for level in range(3):
        highest = every_bound(local, images, level)
        assert (highest >= expected - 1e-4).all()
        gaps.append((highest - expected).mean())
    assert gaps[0] > gaps[1] > gaps[2] > 0


def test_bounds_are_the_scores_at_the_points(expanded):
    _, _, images, expected, _, local = expanded
    for level in range(3):
        highest = every_bound(local, images, level)
        np.testing.assert_allclose(highest[:, :3], expected[:, :3], atol=1e-4)
        assert (highest[:, 3:] > expected[:, 3:] + 1e-3).any()  # bounds, not the scores


def test_estimates_are_the_scores_near_the_mean_image(expanded):
    scorer, read, _, _, points, _ = expanded
    rng, mean = np.random.default_rng(0), points.mean(axis=0)
    axes = np.linalg.qr(rng.normal(size=(len(mean), 4)))[0].astype("float32")
    local = expansions.expand_around(scorer.readout, read, mean[np.newaxis], expansions.LEVELS)
    for scale, tolerance in ((0.0, 1e-4), (0.02, 4e-3), (0.2, 0.4)):
        sketches = scale * rng.normal(size=(6, 4)).astype("float32")
        exact = scorer.matrix(read, mean + sketches @ axes.T)
        columns = tf.range(6)[tf.newaxis]
        told = expansions.estimates(local, tf.constant(sketches), columns, mean, axes)
        np.testing.assert_allclose(told, exact, atol=tolerance)


def test_every_sentence_is_bounded_by_its_own_images(expanded):
    _, read, images, expected, _, local = expanded
    columns = np.random.default_rng(0).integers(0, len(images), (len(read.words), 5))
    highest = expansions.bounds(local, tf.constant(images), tf.constant(columns))
    every = np.take_along_axis(every_bound(local, images), columns, axis=1)
    np.testing.assert_allclose(highest, every, atol=1e-4)
    for row in range(len(read.words)):
        one = every_bound(local.of(row), images)
        np.testing.assert_allclose(one[0], every_bound(local, images)[row], atol=1e-4)
        assert (one[0] >= expected[row] - 1e-4).all()


def test_blocks_of_words_are_joined_in_order(expanded, monkeypatch):
    *_, images, _, _, local = expanded
    whole = every_bound(local, images)
    monkeypatch.setattr(expansions, "_AT_ONCE", 1)
    np.testing.assert_allclose(every_bound(local, images), whole, atol=1e-5)


def test_a_term_that_overflows_leaves_a_bound(expanded):
    _, read, _, _, _, local = expanded
    row = next(row for row, words in enumerate(read.words.numpy()) if words[0] > 3)
    word = int(read.words[row, 0])
    biases = tf.tensor_scatter_nd_update(local.biases, [[word]], [-500.0])
    unlikely = local._replace(biases=biases)
    highest = every_bound(unlikely, np.zeros_like(local.h[:1]))
    assert np.isfinite(highest).all() and -500 < highest[row, 0] < -70


def test_a_level_of_all_words_is_the_score(expanded, monkeypatch):
    scorer, read, images, expected, points, _ = expanded
    monkeypatch.setattr(expansions, "LEVELS", (0, 99))
    local = expansions.expand_around(scorer.readout, read, points, expansions.LEVELS)
    highest = every_bound(local, images)
    np.testing.assert_allclose(highest, expected, atol=1e-4)


def test_all_is_exact_at_the_points(expanded):
    scorer, read, _, _, points, local = expanded
    exact = scorer.matrix(read, points)
    np.testing.assert_allclose(local.sums(local.log_probs), exact, atol=1e-4)
    at_one = scorer.expand(read, points[1])
    np.testing.assert_allclose(at_one.log_probs.numpy().sum(axis=1), exact[:, 1], atol=1e-4)
    np.testing.assert_allclose(at_one.vectors, local.vectors[:, 1], atol=1e-4)


def test_vectors_are_the_slopes_at_the_points(expanded):
    scorer, read, images, _, points, local = expanded
    for centre, point in enumerate(points):
        step = 3e-3 * (images - point)
        change = scorer.matrix(read, point + step) - scorer.matrix(read, point - step)
        told = 2 * local.vectors[:, centre].numpy() @ step.T
        np.testing.assert_allclose(told, change, atol=1e-3)
        assert np.abs(change).max() > 0.05


def test_no_sentences_have_an_expansion(expanded):
    scorer, _, images, _, _, _ = expanded
    none = scorer.expand(scorer.read(np.zeros((0, 5), np.int32)), images[0])
    assert none.vectors.shape == (0, images.shape[1]) and none.log_probs.shape[0] == 0

import numpy as np
import pytest
import tensorflow as tf

from mrnn_tf.consensus.neighbours import (
    MISSING,
    TEMPERATURE,
    Neighbourhood,
    NeighbourSearch,
    RefinedSearch,
    Whitening,
)
from mrnn_tf.model.layers import scaled_tanh


def nearest(queries, images, k):
    return NeighbourSearch(images)(queries, k)


@pytest.fixture
def features():
    return np.random.default_rng(0).normal(size=(400, 16)).astype(np.float32)


def test_the_nearest_are_those_of_all_distances(features):
    queries = features[:90] + 0.1
    found, distances = nearest(queries, features, k=7)
    everything = np.linalg.norm(queries[:, np.newaxis] - features, axis=-1)
    np.testing.assert_array_equal(found, np.argsort(everything, axis=1)[:, :7])
    np.testing.assert_allclose(distances, np.sort(everything, axis=1)[:, :7], rtol=1e-5)


def test_equally_near_images_are_in_their_order_however_many_ask(features):
    copies = np.concatenate([features[:3]] * 40)
    for count in (1, 30):
        found, _ = nearest(features[:count], copies, k=5)
        np.testing.assert_array_equal(found[0], [0, 3, 6, 9, 12])


def test_fewer_images_than_wanted_leave_the_rest_missing(features):
    found, distances = nearest(features[:2], features[:3], k=5)
    assert sorted(found[0, :3]) == [0, 1, 2]
    assert (found[:, 3:] == MISSING).all() and np.isinf(distances[:, 3:]).all()


def test_no_images_are_no_neighbours(features):
    found, _ = nearest(features[:2], features[:0], k=2)
    assert (found == MISSING).all()


def test_features_that_are_no_numbers_are_near_to_nothing(features):
    images = features[:5].copy()
    images[0, 3] = np.nan
    found, _ = nearest(images, images, k=5)
    assert (found[0] == MISSING).all()
    assert sorted(found[1]) == [MISSING, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("shape", "k", "message"), [((2, 9), 3, "one size"), ((2, 16), 0, "`k` must be 1")]
)
def test_bad_arguments_are_refused(features, shape, k, message):
    with pytest.raises(ValueError, match=message):
        nearest(np.zeros(shape, np.float32), features, k)


def test_whitened_features_vary_alike_in_every_direction(features):
    stretched = features * np.array([30.0] + [1.0] * 15, np.float32) + 2
    whitening = Whitening(stretched, size=16)
    unit = stretched / np.linalg.norm(stretched, axis=1, keepdims=True)
    covariance = np.cov((unit - whitening.mean) @ whitening.directions, rowvar=False)
    variances = np.diagonal(covariance)
    np.testing.assert_allclose(covariance, np.diag(variances), atol=1e-5)
    assert variances.max() / variances.min() < 2.5 < unit.var(axis=0).max() / unit.var(axis=0).min()
    np.testing.assert_allclose(np.linalg.norm(whitening(stretched), axis=1), 1.0, rtol=1e-5)


def test_whitening_makes_small_directions_count(features):
    """What two images share hides in small directions under a large one that means nothing."""
    rng = np.random.default_rng(1)
    meaning = rng.integers(0, 4, 300)
    images = np.concatenate(
        [rng.normal(0, 20, (300, 1)), np.eye(4)[meaning] + rng.normal(0, 0.05, (300, 4))], axis=1
    ).astype(np.float32)
    images[:, 0] += 100
    white = Whitening(images)(images).numpy()

    def agreement(features):
        found, _ = nearest(features, features, k=6)
        return np.mean(meaning[found[:, 1:]] == meaning[:, np.newaxis])

    assert agreement(white) > 0.9 > agreement(images) + 0.2


def test_whitening_keeps_only_directions_that_vary(features):
    flat = features.copy()
    flat[:, 8:] = 0.0
    assert Whitening(flat).directions.shape == (16, 8)
    with pytest.raises(ValueError, match="two images"):
        Whitening(features[:1])


@pytest.mark.parametrize("whiten", [True, False])
def test_a_neighbourhood_leaves_an_image_out_of_its_own(features, whiten):
    neighbourhood = Neighbourhood(features, whiten)
    white = Whitening(features)(features).numpy() if whiten else features
    numbers, distances = nearest(white[:9], white, k=6)
    images, weights = neighbourhood.nearest(features[:9], k=5, own=np.arange(9))
    np.testing.assert_array_equal(images, numbers[:, 1:])
    expected = np.exp(-np.square(distances[:, 1:]) / TEMPERATURE) if whiten else np.ones((9, 5))
    np.testing.assert_allclose(weights, expected, rtol=1e-5)
    others, _ = neighbourhood.nearest(features[:9], k=5)
    np.testing.assert_array_equal(others, numbers[:, :5])
    few = Neighbourhood(features[:3], whiten).nearest(features[:1], k=4, own=[0])
    assert sorted(few.images[0]) == [MISSING, MISSING, 1, 2]
    assert few.weights[0, 2:].tolist() == [0.0, 0.0]


def test_a_graph_finds_the_same_neighbours(features):
    neighbourhood = Neighbourhood(features)
    queries = features[:9] + 0.1
    queries[3, 2] = np.nan
    images, weights = neighbourhood.near(queries, k=5)
    expected = neighbourhood.nearest(queries, k=5)
    np.testing.assert_array_equal(images, expected.images)
    np.testing.assert_allclose(weights, expected.weights, rtol=1e-5)
    assert (expected.images[3] == MISSING).all() and not expected.weights[3].any()
    few = Neighbourhood(features[:3]).near(queries, k=5)
    assert (few.images[:, 3:].numpy() == MISSING).all() and not few.weights[:, 3:].numpy().any()


def test_refined_features_are_searched_without_a_matrix_of_their_own():
    """Some units are nearly linear, some saturate; equal images are in their order."""
    rng = np.random.default_rng(0)
    projections = rng.normal(size=(1000, 64)) * np.geomspace(0.1, 3.0, 64)
    images = tf.Variable(np.concatenate([projections, projections[:3]]).astype(np.float32))
    search = RefinedSearch(images)
    queries = scaled_tanh(projections[:40] + rng.normal(0, 0.3, (40, 64))).numpy()
    queries[:3], queries[3] = scaled_tanh(projections[:3]), np.nan
    found, distances = search.candidates(queries.astype(np.float32), 200)
    expected = nearest(queries, scaled_tanh(images).numpy(), k=10)
    np.testing.assert_array_equal(found[:, :10], expected[0])
    np.testing.assert_allclose(distances[:, :10], expected[1], rtol=1e-5, atol=1e-6)
    assert found[:3, :2].numpy().tolist() == [[0, 1000], [1, 1001], [2, 1002]]
    own = [each.shape.as_list() for each in search.variables if each is not images]
    assert sorted(own) == [[64], [1003]]


def test_no_images_are_similar_to_none():
    found, _ = RefinedSearch(tf.Variable(np.zeros((0, 8), np.float32))).candidates(
        np.zeros((2, 8), np.float32), 3
    )
    assert (found == MISSING).numpy().all()

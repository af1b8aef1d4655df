import numpy as np

from mrnn_tf.retrieval.centres import Centres, Lists


def clusters(count=40, seed=0):
    """Images around three points that are far apart."""
    rng = np.random.default_rng(seed)
    points = np.eye(3, 6, dtype=np.float32) * 10
    return np.repeat(points, count, axis=0) + rng.normal(0, 0.1, (3 * count, 6)).astype(np.float32)


def test_centres_are_those_of_the_clusters_and_the_same_every_time():
    images = clusters()
    centres = Centres.of(images, count=3, axes=2, seed=1)
    assert sorted(centres.points.argmax(axis=1)) == [0, 1, 2]
    assert centres.points.max(axis=1).min() > 9.9
    np.testing.assert_allclose(centres.axes.T @ centres.axes, np.eye(2), atol=1e-5)
    again = Centres.of(images, count=3, axes=2, seed=1)
    for one, other in zip(centres, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_lists_hold_every_image_once_with_its_nearest_centre():
    images = clusters()
    centres = Centres.of(images[::2], count=3, seed=1)
    lists = Lists.of(centres, images)
    assert sorted(lists.rows) == list(range(len(images))) and lists.ends[-1] == len(images)
    begin = 0
    for point, end in zip(centres.points, lists.ends, strict=True):
        own = images[lists.rows[begin:end]]
        distances = np.linalg.norm(own - centres.points[:, np.newaxis], axis=2)
        assert (distances.min(axis=0) == np.linalg.norm(own - point, axis=1)).all() and end > begin
        begin = end
    back = lists.sketches @ centres.axes.T + centres.mean  # all axes are there
    np.testing.assert_allclose(back, images[lists.rows], atol=1e-4)


def test_few_images_have_few_centres():
    images = clusters()
    assert Centres.of(images[:1]).points.shape == (1, 6)
    assert Lists.of(Centres.of(images[:2]), images[:0]).ends.tolist() == [0, 0]

import keras
import numpy as np
import pytest
import tensorflow as tf

from mrnn_tf.model import layers


def test_scaled_tanh_is_equation_4():
    # Its constants are chosen so that 1 stays 1; far away it saturates.
    x = np.array([-100.0, -1.0, 0.0, 1.0, 2.0])
    np.testing.assert_allclose(layers.scaled_tanh(x), [-1.7159, -1, 0, 1, 1.49294], atol=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_feature_norm_leaves_the_direction_only(scale):
    features = np.array([[3.0, 4.0], [0.0, 0.0]], "float32") * np.float32(scale)
    expected = [[6.0, 8.0], [0.0, 0.0]]
    np.testing.assert_allclose(layers.FeatureNorm(10.0)(features), expected, rtol=1e-5)


def test_feature_norm_gives_every_part_the_same_share():
    features = np.array([[300.0, 400.0, 0.01], [3.0, 4.0, 0.0]], "float32")
    normed = layers.FeatureNorm(5.0, parts=[2, 1])(features)
    share = 5.0 / np.sqrt(2)
    expected = [[0.6 * share, 0.8 * share, share], [0.6 * share, 0.8 * share, 0.0]]
    np.testing.assert_allclose(normed, expected, rtol=1e-5)
    np.testing.assert_array_equal(
        layers.FeatureNorm(5.0, parts=[3])(features), layers.FeatureNorm(5.0)(features)
    )


def test_feature_norm_of_a_zero_vector_has_a_finite_gradient():
    features = tf.zeros((1, 3))
    with tf.GradientTape() as tape:
        tape.watch(features)
        normed = layers.FeatureNorm(1.0)(features)
    assert np.isfinite(tape.gradient(normed, features)).all()


def test_dropout_drops_in_training_only_and_keeps_the_mean():
    dropout = layers.Dropout(0.25, seed=1)
    ones = tf.ones((100, 100))
    np.testing.assert_array_equal(dropout(ones), ones)
    dropped = dropout(ones, training=True).numpy()
    assert set(np.unique(dropped)) == {0.0, np.float32(1 / 0.75)}
    assert dropped.mean() == pytest.approx(1.0, abs=0.02)


def test_dropout_depends_on_the_seed_and_on_the_call():
    ones = tf.ones((10, 10))
    first, same, other = (layers.Dropout(0.5, seed) for seed in (1, 1, 2))
    mask = first(ones, training=True)
    np.testing.assert_array_equal(same(ones, training=True), mask)
    assert (other(ones, training=True) != mask).numpy().any()
    assert (first(ones, training=True) != mask).numpy().any()


@pytest.mark.parametrize(
    "layer",
    [layers.FeatureNorm(2.0, [3, 4]), layers.Bias(), layers.Dropout(0.5, 3)],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_survive_serialization(layer):
    config = keras.saving.serialize_keras_object(layer)
    assert keras.saving.deserialize_keras_object(config).get_config() == layer.get_config()


def masks(strategy, steps, restore=None, save=None):
    """What every replica keeps of a batch of ones, for some steps of a training loop."""
    with strategy.scope():
        inputs = keras.Input((16,))
        model = keras.Model(inputs, layers.Dropout(0.5, seed=3)(inputs))
    checkpoint = tf.train.Checkpoint(model=model)
    if restore:
        checkpoint.read(restore).assert_consumed()

    @tf.function
    def step():
        return strategy.run(lambda: model(tf.ones((4, 16)), training=True))

    results = [strategy.experimental_local_results(step()) for _ in range(steps)]
    if save:
        checkpoint.write(save)
    return np.array(results)


@pytest.mark.parametrize("devices", [1, 2])
def test_dropout_resumes_and_differs_between_replicas(devices, tmp_path):
    strategy = tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(devices)])
    undisturbed = masks(strategy, 4)
    before = masks(strategy, 2, save=str(tmp_path / "checkpoint"))
    after = masks(strategy, 2, restore=str(tmp_path / "checkpoint"))
    np.testing.assert_array_equal(np.concatenate([before, after]), undisturbed)
    distinct = {mask.tobytes() for step in undisturbed for mask in step}
    assert len(distinct) == 4 * devices

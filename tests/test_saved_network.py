import numpy as np
import presets
import pytest
import skimage.data
import tensorflow as tf

from mrnn_tf.errors import UserError
from mrnn_tf.vision import encoders


def test_features_are_those_of_the_signature(tmp_path):
    directory = presets.write_saved_model(tmp_path / "net")
    encoder = encoders.create(f"saved_model:{directory}", crops=10, scaling="tf")
    assert (encoder.input_size, encoder.feature_size) == (28, 5)
    prepared = encoder.prepare(skimage.data.coffee())[tf.newaxis]
    assert float(tf.reduce_max(tf.abs(prepared))) <= 1.0
    network = tf.saved_model.load(directory).signatures["serving_default"]
    [features] = network(prepared[0]).values()
    expected = np.mean(features, axis=0)
    np.testing.assert_allclose(encoder.encode(prepared)[0], expected, atol=1e-5)
    assert len(encoder.model.variables) == 2
    assert encoder.identity.endswith(":windows28-tf:crops=10:5")


def test_bytes_are_taken_as_they_are(tmp_path):
    directory = presets.write_saved_model(tmp_path / "net", (None, None, 3), tf.uint8)
    encoder = encoders.create(f"saved_model:{directory}", input_size=20)
    image = skimage.data.coffee()[:20, :20]
    network = tf.saved_model.load(directory).signatures["serving_default"]
    [expected] = network(tf.constant(image[np.newaxis])).values()
    features = encoder.encode(encoder.prepare(image)[tf.newaxis])
    np.testing.assert_allclose(features, expected, rtol=1e-5)


def test_two_networks_have_two_identities(tmp_path):
    directories = [presets.write_saved_model(tmp_path / name) for name in ("one", "two")]
    names = [f"saved_model:{directory}" for directory in directories]
    identities = {encoders.create(name, scaling="unit").identity for name in names}
    assert len(identities) == 2
    assert encoders.create(names[0], scaling="unit").identity in identities


def test_what_is_wrong_is_said(tmp_path):
    fixed = presets.write_saved_model(tmp_path / "fixed")
    free = presets.write_saved_model(tmp_path / "free", (None, None, 3))
    wide = presets.write_saved_model(tmp_path / "wide", (28, 30, 3))
    grey = presets.write_saved_model(tmp_path / "grey", (28, 28, 1))
    cases = [
        (fixed, {}, "`scaling` is required, one of raw, unit"),
        (fixed, {"scaling": "tf", "input_size": 30}, "takes images of 28 x 28"),
        (free, {"scaling": "tf"}, "`input_size` is required"),
        (wide, {"scaling": "tf"}, "takes images of 28 x 30"),
        (grey, {"scaling": "tf"}, r"must have one signature from pixels \[B, H, W, 3\]"),
    ]
    for directory, settings, sentence in cases:
        with pytest.raises(UserError, match=sentence):
            encoders.create(f"saved_model:{directory}", **settings)
    with pytest.raises(FileNotFoundError, match="nowhere holds no SavedModel"):
        encoders.create("saved_model:nowhere")

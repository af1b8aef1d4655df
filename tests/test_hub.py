import keras
import keras_hub
import numpy as np
import presets
import pytest
import skimage.data
import tensorflow as tf
from test_grouped_conv import uses_xla

from mrnn_tf.errors import UserError
from mrnn_tf.vision import encoders, hub

WAYS = {
    "vit": {"cls": 8, "mean": 8, "cls_mean": 16},
    "dinov2": {"cls": 8, "mean": 8, "cls_mean": 16},
    "clip": {"pooled": 6, "cls": 8, "mean": 8, "cls_mean": 16},
    "siglip": {"pooled": 8, "mean": 8},
    "resnet": {"mean": 64},
}


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    return presets.write(tmp_path_factory.mktemp("presets"))


def expected(directory, pixels):
    """Tokens of the class, of the patches, and pooled features, by keras-hub alone."""
    backbone = keras_hub.models.Backbone.from_preset(directory)
    converter = keras_hub.layers.ImageConverter.from_preset(directory)
    windows = pixels * np.float32(converter.scale) + np.float32(converter.offset)
    if not hasattr(backbone, "get_vision_embeddings"):
        is_dict = isinstance(backbone.input, dict)
        return backbone({"images": windows} if is_dict else windows), None
    vision = backbone.vision_encoder
    if len(vision.output.shape) == 2:  # SigLIP
        vision = keras.Model(vision.input, vision.post_layer_norm.output)
    return vision({"images": windows}), backbone.get_vision_embeddings(windows)


@pytest.mark.parametrize(("name", "pooling"), [(n, way) for n in WAYS for way in WAYS[n]])
def test_features_are_those_of_keras_hub(directories, name, pooling):
    directory = directories[name]
    size = {"input_size": presets.SIZE} if name == "resnet" else {}
    encoder = encoders.create(f"keras_hub:{directory}", pooling=pooling, **size)
    assert (encoder.input_size, encoder.feature_size) == (presets.SIZE, WAYS[name][pooling])
    image = skimage.data.coffee()[: presets.SIZE, : presets.SIZE]
    features = encoder.encode(encoder.prepare(image)[tf.newaxis])[0]
    tokens, pooled = expected(directory, image[np.newaxis].astype(np.float32))
    ways = {"pooled": pooled}
    if name == "resnet":
        ways["mean"] = np.mean(tokens, axis=(1, 2))
    else:
        patches = np.mean(tokens[:, {"dinov2": 4, "siglip": 0}.get(name, 1) :], axis=1)
        ways |= {"cls": tokens[:, 0], "mean": patches}
        ways["cls_mean"] = np.concatenate([tokens[:, 0], patches], axis=1)
    np.testing.assert_allclose(features, ways[pooling][0], atol=1e-4)


def test_identity_is_of_the_weights_and_not_of_the_place(directories, tmp_path):
    name = directories["dinov2"]
    encoder = encoders.create(f"keras_hub:{name}", crops=10, pooling="cls_mean")
    moved = tmp_path / "moved"
    moved.symlink_to(name)
    other = encoders.create(f"keras_hub:{moved}", crops=10, pooling="cls_mean")
    assert encoder.identity == other.identity
    assert encoder.identity.startswith(f"keras_hub:{encoder.weights_sha256[:12]}:windows28-preset")
    assert encoder.identity.endswith("-cls_mean:crops=10:16")
    assert encoder.describe()["name"] == f"keras_hub:{name}"
    assert encoder.describe()["pooling"] == "cls_mean"
    rescaled = encoders.create(f"keras_hub:{name}", crops=10, pooling="cls_mean", scaling="unit")
    assert rescaled.identity != encoder.identity
    prepared = encoder.prepare(skimage.data.coffee())[tf.newaxis]
    assert prepared.shape == (1, 10, 28, 28, 3) and encoder.encode(prepared).shape == (1, 16)
    assert not uses_xla(encoder.encode, prepared)


def test_what_is_wrong_is_said(directories, tmp_path, caplog):
    siglip = f"keras_hub:{directories['siglip']}"
    with pytest.raises(UserError, match=r"`pooling` must be one of pooled, mean for .*got 'cls'"):
        encoders.create(siglip, pooling="cls")
    with pytest.raises(UserError, match=r"`encoder_weights`: .* has weights of its own"):
        encoders.create(siglip, "weights.h5")
    with pytest.raises(UserError, match="`input_size` is required"):
        encoders.create(f"keras_hub:{directories['resnet']}")
    with pytest.raises(FileNotFoundError, match=r"there is no directory \./nowhere"):
        encoders.create("keras_hub:./nowhere")
    with pytest.raises(UserError, match="`pooling` goes with `encoder` keras_hub; got"):
        encoders.create("efficientnet_lite0", pooling="cls")
    presets.backbones()["vit"][0].save_to_preset(str(tmp_path / "bare"))
    with pytest.raises(UserError, match="`scaling` is required, one of raw, unit, tf, imagenet"):
        encoders.create(f"keras_hub:{tmp_path}/bare")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=f"keras-hub cannot load {tmp_path}/empty"):
        encoders.create(f"keras_hub:{tmp_path}/empty")


def test_only_a_name_downloads(directories, monkeypatch):
    said = []

    def refuse(preset, **_):
        raise OSError(f"no network for {preset}")

    monkeypatch.setattr(keras_hub.models.Backbone, "from_preset", refuse)
    monkeypatch.setattr(hub.logging, "info", lambda text, *values: said.append(text % values))
    with pytest.raises(UserError, match="keras-hub cannot load dinov2_small: no network"):
        hub.load("dinov2_small")
    assert said == ["dinov2_small is no directory: keras-hub downloads the preset of that name."]
    with pytest.raises(UserError, match="cannot load"):
        hub.load(directories["vit"])
    assert len(said) == 1

import json

import numpy as np
import presets
import programs
import pytest
import tensorflow as tf
import tiny
from test_export import small, untrained

import mrnn_tf
from export import saved_model
from mrnn_tf.errors import UserError
from mrnn_tf.inference import attached_encoder
from mrnn_tf.run import Run
from mrnn_tf.vision import encoders


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("networks")


@pytest.fixture(scope="module")
def name(folder):
    """A SavedModel and four transformers of keras-hub, joined."""
    directories = presets.write(folder)
    names = [f"keras_hub:{directories[kind]}" for kind in ("vit", "dinov2", "clip", "siglip")]
    return "+".join([f"saved_model:{presets.write_saved_model(folder / 'net')}", *names])


def prepared(encoder, content):
    windows = encoder.prepare(tf.io.decode_png(content))
    return tf.nest.map_structure(lambda part: part[tf.newaxis], windows)


def test_the_features_are_side_by_side(name, photographs):
    encoder = encoders.create(name, scaling="imagenet")
    assert encoder.describe()["parts"] == [5, 8, 8, 6, 8] and encoder.feature_size == 35
    assert encoder.name == name and encoder.identity.count("+") == 4
    features = encoder.encode(prepared(encoder, photographs[0]))
    expected = [part.encode(prepared(part, photographs[0])) for part in encoder.parts]
    np.testing.assert_allclose(features, np.concatenate(expected, axis=1), atol=1e-5)


def test_files_of_weights_go_with_their_encoders():
    joined = encoders.create("mobilenet_v2+efficientnet_lite0", "random,")
    one, two = (
        encoders.create(*each) for each in (("mobilenet_v2", "random"), ("efficientnet_lite0",))
    )
    assert joined.identity == f"{one.identity}+{two.identity}"
    with pytest.raises(UserError, match="`encoder_weights` must be 2 files; got 'random'"):
        encoders.create("mobilenet_v2+efficientnet_lite0", "random")


def test_all_are_inside_the_saved_model(name, tiny_job, photographs, tmp_path):
    """The export runs in a session with stock ops before it appears."""
    run = untrained(Run.load(tiny_job).vocabulary, 35, {"identity": "features:theirs:35"})
    encoder = attached_encoder(run, name, scaling="imagenet")
    saved_model.export_run(run, small(run, encoder), str(tmp_path / "1"))
    served = tf.saved_model.load(str(tmp_path / "1")).signatures["encode_image"]
    features = served(image_bytes=tf.constant(photographs))["features"]
    expected = [encoder.encode(prepared(encoder, content))[0] for content in photographs]
    np.testing.assert_allclose(features, expected, atol=1e-4)


def test_a_run_keeps_its_parts_and_finds_its_encoders(folder, name, tmp_path):
    tiny.photographs(tmp_path / "photos")
    name = f"efficientnet_lite0+{name.split('+keras_hub')[0]}"
    prepare = ["--dataset=jsonl", "--source", tmp_path / "photos", "--output", tmp_path / "data"]
    prepare += ["--min_count=1", "--encoder", name, "--scaling=tf"]
    task = ["--data", tmp_path / "data", "--job_dir", tmp_path / "job", "--preset=demo"]
    task += ["--epochs=2", "--batch_size=12", "--multimodal=24"]
    for module, arguments in (("trainer.prepare", prepare), ("trainer.task", task)):
        done = programs.run(tmp_path / "logs", module, *arguments)
        assert done.code == 0, done.err
    config = json.loads((tmp_path / "job" / "config.json").read_text())
    assert config["encoder"]["parts"] == [1280, 5] and config["encoder"]["scaling"] == "tf"
    [caption, *_] = mrnn_tf.Captioner.load(str(tmp_path / "job")).caption(tiny.picture(0))
    assert caption.text
    finetune = [*task, "--finetune_encoder"]
    finetune[3] = tmp_path / "other"
    assert "--store both" in programs.run(tmp_path / "logs", "trainer.task", *finetune).error

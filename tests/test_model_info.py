"""What servables say of themselves, and that a model and an index of another are not mixed."""

import json
import os
import shutil

import numpy as np
import pytest
import served
import tensorflow as tf
import tiny

from export import saved_model
from mrnn_tf import schema
from mrnn_tf.captioner import Captioner
from mrnn_tf.config import BeamSearch
from mrnn_tf.errors import UserError
from mrnn_tf.fingerprints import check_together
from mrnn_tf.inference import Inference
from mrnn_tf.photo_index import PhotoIndex
from mrnn_tf.run import Run
from serving.client import Client, ServingError

RED = 0


@pytest.fixture(scope="module")
def other_model(photo_job, lite0, tmp_path_factory):
    """A version of another model that takes the features of the same encoder."""
    run = Run.load(photo_job)
    for weight in run.network.model.trainable_variables:
        weight.assign(1.1 * weight)
    directory = tmp_path_factory.mktemp("other_model") / "1"
    saved_model.export_run(run, Inference(run, lite0, BeamSearch(beam=1)), str(directory))
    return directory


@pytest.mark.parametrize("servable", ["mrnn", "mrnn_index"])
def test_a_servable_says_what_it_was_made_of(searchable_models, photo_job, servable):
    loaded = tf.saved_model.load(str(searchable_models / servable / "1"))
    keys = ["encoder", "model", "", "vocabulary", "zyx", "feature_size", "step", "settings"]
    answer = loaded.signatures["model_info"](keys=tf.constant(keys))["values"]
    encoder, model, empty, vocabulary, unknown, size, step, settings = (
        value.decode() for value in answer.numpy()
    )
    run = Run.load(photo_job)
    assert (model, encoder) == (run.fingerprint, run.config.encoder["identity"])
    assert len(vocabulary) == 64 and vocabulary == run.fingerprints["vocabulary"]
    assert (empty, unknown, size, step) == ("", "", "1280", str(run.step))
    facts = json.loads((searchable_models / servable / "1" / "assets" / "config.json").read_text())
    assert json.loads(settings) == facts["settings"]


def test_only_what_both_say_is_compared():
    ours = {"model": "0123456789abcdef", "encoder": "lite0"}
    for model, index in ((ours, ours), ({}, ours), (ours, {}), (ours, {**ours, "step": "3"})):
        check_together(model, index)
    with pytest.raises(
        UserError, match="made with the model xyz, but the model's is 0123456789ab:"
    ):
        check_together(ours, {**ours, "model": "xyz"})
    with pytest.raises(
        UserError, match="made with the encoder vgg16, but the model's is lite0: use"
    ):
        check_together(ours, {**ours, "encoder": "vgg16"})


def test_the_client_compares_whenever_a_version_changes(searchable_models, other_model, tmp_path):
    base = tmp_path / "models"
    shutil.copytree(searchable_models / "mrnn", base / "mrnn")
    shutil.copytree(searchable_models / "mrnn_index", base / "mrnn_index")
    photos, features = [tiny.picture(RED)], np.ones((1, 1280), np.float32)
    with served.serving(tmp_path, base) as server, Client(server.address) as client:

        def publish(version, source):
            shutil.copytree(source, base / "mrnn" / f"{version}.partial")
            os.rename(base / "mrnn" / f"{version}.partial", base / "mrnn" / str(version))
            served.wait_for(lambda: version in client.status()["mrnn"])
            served.wait_for(lambda: client.status()["mrnn"][version] == "AVAILABLE")

        assert client.similar_images(photos)[0]["ids"][0] in ("0.png", "3.png")
        publish(2, other_model)
        for ask in (client.similar_images, client.search_sentences, client.caption_reranked):
            with pytest.raises(
                ServingError, match=r"The index was made with the model .*: use the"
            ):
                ask(photos)
        assert client.caption(photos)[0]["captions"]  # the model alone, and the index alone, answer
        assert client.search_images(["everything is red"])[0]["ids"]
        assert client.similar_images(features)[0]["ids"]
        publish(3, searchable_models / "mrnn" / "1")
        assert client.similar_images(photos)[0]["ids"][0] in ("0.png", "3.png")
        body = {"signature_name": "model_info", "instances": ["model", "zyx"]}
        answer = server.http.post("/v1/models/mrnn_index:predict", json=body).json()
        assert answer == {"predictions": [client.fingerprints("mrnn")["model"], ""]}


def test_a_photo_index_refuses_another_model(searchable_models, other_model, photo_job, tmp_path):
    version = searchable_models / "mrnn_index" / "1"
    other = Captioner.load(other_model)
    with pytest.raises(UserError, match="The index was made with the model"):
        PhotoIndex.load(version, other)
    shutil.copytree(other_model, tmp_path / "mrnn" / "1")
    shutil.copytree(version, tmp_path / "mrnn_index" / "1")
    with pytest.raises(UserError, match="The index was made with the model"):
        PhotoIndex.load(tmp_path / "mrnn_index")
    assert PhotoIndex.load(tmp_path / "mrnn_index", Captioner.load(photo_job)).similar(
        tiny.picture(RED), k=1
    )
    signatures = dict((loaded := tf.saved_model.load(str(version))).signatures)
    del signatures[schema.MODEL_INFO]  # as those of earlier releases
    assert PhotoIndex(signatures, other).similar(tiny.picture(RED), k=1) and loaded

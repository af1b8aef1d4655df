"""Packaged models: written whole, loaded by name, refused where they are damaged."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import programs
import pytest
import tiny

from mrnn_tf import pretrained
from mrnn_tf.captioner import Captioner
from mrnn_tf.errors import UserError
from mrnn_tf.pretrained import packaging
from mrnn_tf.run import Run

CARD = pretrained.Card("a small network", "for tests", {"val cider": 0.5})


@pytest.fixture(scope="module")
def run(photo_job):
    return Run.load(photo_job)


@pytest.fixture(scope="module")
def packaged(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("packaged") / "colours"
    packaging.package(run, str(folder), CARD)
    return folder


@pytest.fixture
def home(packaged, monkeypatch):
    """Puts the packaged model where the package looks for models."""
    monkeypatch.setattr(pretrained, "_HOME", packaged.parent)
    return packaged.parent


def test_weights_are_those_of_the_run_in_16_bits(run, packaged):
    loaded = packaging.load(str(packaged))
    assert loaded.step == run.step and loaded.vocabulary.words == run.vocabulary.words
    pairs = zip(
        [*loaded.network.model.trainable_variables, *loaded.network.means.values()],
        [*run.network.model.trainable_variables, *run.network.means.values()],
        strict=True,
    )
    for mine, theirs in pairs:
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy().astype(np.float16))


def test_the_same_run_gives_the_same_bytes(run, packaged, tmp_path):
    packaging.package(run, str(tmp_path / "again"), CARD)
    for path in packaged.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()


def test_a_model_is_loaded_by_its_name(home, photo_job):
    captions = Captioner.load("colours").caption(tiny.picture(0))
    expected = Captioner.load(photo_job).caption(tiny.picture(0))
    assert captions[0].text == expected[0].text
    assert captions[0].log_prob == pytest.approx(expected[0].log_prob, abs=0.02)


def test_the_default_needs_no_name(home, monkeypatch):
    monkeypatch.setattr(pretrained, "DEFAULT", "colours")
    assert pretrained.resolve() == str(home / "colours")
    assert pretrained.card("colours") == CARD


def test_a_release_without_a_default_says_so(home):
    with pytest.raises(UserError, match="`model` is required: this release has no pretrained"):
        Captioner.load()


def test_an_unknown_name_is_answered_by_the_known_ones(home, tmp_path):
    with pytest.raises(UserError, match=r"There is no model nonsense: .* pretrained one: colours"):
        Captioner.load("nonsense")
    with pytest.raises(UserError, match="holds neither a SavedModel"):
        Captioner.load(tmp_path)


@pytest.mark.parametrize("name", ["weights.safetensors", "vocabulary.txt", "config.json"])
def test_a_damaged_file_is_named(name, packaged, tmp_path):
    for path in packaged.iterdir():
        content = bytearray(path.read_bytes())
        if path.name == name:
            content[len(content) // 2] ^= 1
        (tmp_path / path.name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name} is damaged"):
        packaging.load(str(tmp_path))


def test_weights_of_other_sizes_are_refused(packaged, tmp_path):
    for path in packaged.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["model"]["multimodal"] += 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    tiny.edit(tmp_path / "model.json")
    with pytest.raises(UserError, match="does not fit its settings at "):
        packaging.load(str(tmp_path))


def test_what_cannot_be_packaged_is_told(run, tiny_job, tmp_path, monkeypatch):
    features_only = Run.load(tiny_job)
    with pytest.raises(UserError, match="`encoder` is required: the run has precomputed features"):
        packaging.package(features_only, str(tmp_path / "model"), CARD)
    with pytest.raises(UserError, match="makes 1280 features, but the run was trained on 12"):
        packaging.package(features_only, str(tmp_path / "model"), CARD, "efficientnet_lite0")
    train = dataclasses.replace(run.config.train, finetune_encoder=True)
    config = dataclasses.replace(run.config, train=train)
    with pytest.raises(UserError, match="trained its own encoder"):
        packaging.package(dataclasses.replace(run, config=config), str(tmp_path / "model"), CARD)
    monkeypatch.setattr(packaging, "MAX_BYTES", 1000)
    with pytest.raises(UserError, match=r"would have .* bytes, and 1,000 are shipped"):
        packaging.package(run, str(tmp_path / "model"), CARD)
    assert not (tmp_path / "model").exists()


def test_the_run_before_is_no_part_of_the_model(run, tmp_path):
    train = dataclasses.replace(run.config.train, initial_run="/home/somebody/run")
    config = dataclasses.replace(run.config, train=train)
    packaging.package(dataclasses.replace(run, config=config), str(tmp_path / "model"), CARD)
    assert "somebody" not in (tmp_path / "model" / "config.json").read_text()


def test_the_program(photo_job, tmp_path):
    scores = tmp_path / "scores.json"
    figures = {"cider": 0.5, "bleu_4": 0.2, "perplexity": 9.0, "bleu_1": 0.6}
    scores.write_text(json.dumps({"split": "val", "captions": {"beam 5": figures}}))
    arguments = ["--job_dir", photo_job, "--output", tmp_path / "model", "--scores", scores]
    arguments += ["--description=one", "--terms=two"]
    done = programs.run(tmp_path, "export.pretrained", *arguments)
    assert done.code == 0, done.err
    assert "MB\nnext: mrnn caption photo.jpg" in done.out
    marker = json.loads((tmp_path / "model" / "model.json").read_text())
    expected = {"val cider": 0.5, "val bleu_4": 0.2, "val perplexity": 9.0}
    assert (marker["description"], marker["terms"]) == ("one", "two")
    assert marker["figures"] == expected
    scores.write_text("{}")
    done = programs.run(tmp_path, "export.pretrained", *arguments)
    assert done.error.startswith("error: --scores ") and "no figures of captions" in done.error


def test_names_and_cards_need_no_tensorflow():
    code = "import sys; from mrnn_tf import pretrained; pretrained.names(); "
    code += "print('tensorflow' in sys.modules, 'numpy' in sys.modules)"
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.stdout == "False False\n", done.stderr

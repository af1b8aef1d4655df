import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tiny

from mrnn_tf import config, files, run, schema, text
from mrnn_tf.config import ModelConfig, RunConfig, TrainConfig
from mrnn_tf.data import pipeline, records
from mrnn_tf.errors import UserError

SMALL = {"embedding_1": 3, "embedding_2": 4, "recurrent": 4, "multimodal": 5}


def run_config(seed=0, identity=tiny.IDENTITY, **model):
    encoder = {"identity": identity, "feature_size": tiny.FEATURE_SIZE}
    return RunConfig(
        ModelConfig(**SMALL, **model), TrainConfig(seed=seed), 9, tiny.FEATURE_SIZE, encoder, "x"
    )


@pytest.mark.parametrize("variant", config.VARIANTS)
def test_a_checkpoint_holds_every_weight_of_every_variant(variant, tmp_path):
    saved = run.build(run_config(0, variant=variant))
    path = tf.train.Checkpoint(network=saved).write(str(tmp_path / "x"))
    restored = run.build(run_config(1, variant=variant))
    tf.train.Checkpoint(network=restored).read(path).assert_consumed()
    for one, other in zip(saved.model.weights, restored.model.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_a_configuration_survives_json(tmp_path):
    original = run_config(3, variant="mrnn_shared")
    assert RunConfig.from_dict(original.to_dict()) == original
    assert original.difference(original) is None
    assert "train.seed is 3 there and 4 here" in original.difference(
        run_config(4, variant="mrnn_shared")
    )


def test_features_of_another_encoder_are_refused(tiny_data):
    run.check_encoder(run_config(), tiny_data)
    with pytest.raises(ValueError, match=r"features of features:tiny:12, but .* vgg16"):
        run.check_encoder(run_config(identity="vgg16:abc"), tiny_data)


def test_a_run_with_its_own_encoder_refuses_records_without_images(tiny_data):
    own = run_config()
    own = RunConfig(**{**own.__dict__, "train": TrainConfig(finetune_encoder=True)})
    with pytest.raises(ValueError, match="holds features only"):
        run.check_encoder(own, tiny_data)


def test_an_encoder_to_be_trained_must_be_named(tiny_job, tmp_path):
    job = shutil.copytree(tiny_job, tmp_path / "job")
    tiny.edit(job / "config.json", lambda content: content["train"].update(finetune_encoder=True))
    with pytest.raises(UserError, match="has `finetune_encoder`, but no `crops` and `name`"):
        run.Run.load(str(job))


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="it is not a run"):
        run.Run.load(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="is not the configuration of a run"):
        run.Run.load(str(tmp_path))


@pytest.mark.parametrize(
    "damage",
    [{"vocabulary_size": [9]}, {"feature_size": 0}, {"encoder": "vgg16"}, {"encoder": {}},
     {"encoder": {"identity": 7}}, {"encoder": {"identity": "a", "b": [[]]}},
     {"encoder": {"identity": "a", "parts": [8, 5]}}, {"dataset": None}, {"model": []}],
)  # fmt: skip
def test_a_damaged_configuration_is_refused(tiny_job, tmp_path, damage):
    marker = shutil.copy(Path(tiny_job) / "config.json", tmp_path)
    tiny.edit(marker, lambda content: content.update(damage))
    with pytest.raises(UserError, match=r"config\.json is not the configuration of a run"):
        run.load_config(str(tmp_path))


def test_a_run_of_an_earlier_version_is_read(tiny_job, tmp_path):
    old = shutil.copytree(tiny_job, tmp_path / "job")
    tiny.edit(old / "config.json")
    content = json.loads((old / "config.json").read_text())
    content["model"]["image_dropout"] = content["train"]["label_smoothing"] = 0.0
    (old / "config.json").write_text(json.dumps(content))
    assert run.Run.load(str(old)).config == run.Run.load(tiny_job).config
    content["train"]["label_smoothing"] = 0.1
    (old / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"`TrainConfig\.label_smoothing` was removed"):
        run.Run.load(str(old))


def test_only_whole_checkpoints_count(tmp_path):
    for name in ("model-00000005.index", "model-00000012.index", "model-00000020.data-0-of-1"):
        (tmp_path / name).touch()
    assert run.checkpoint_steps(str(tmp_path), "model") == [5, 12]
    assert run.latest(str(tmp_path), "model").endswith("model-00000012")
    assert run.latest(str(tmp_path), "best") is None


def test_records_know_their_encoder(tiny_data):
    assert records.DatasetInfo.load(tiny_data).identity == tiny.IDENTITY


def test_no_image_is_the_mean_one(tiny_data):
    network = run.build(run_config())
    vocabulary = text.Vocabulary.load(f"{tiny_data}/vocabulary.txt")
    source = pipeline.Source(tiny_data, "train", vocabulary)
    network.take_mean(source)
    features = np.concatenate([batch["features"] for batch in network.images(source, 7)])
    np.testing.assert_allclose(network.mean_features, features.mean(0), rtol=1e-5)
    projected = network.model.project_image(features)["multimodal"].numpy()
    np.testing.assert_allclose(network.mean_projection(), projected.mean(0), rtol=1e-3, atol=1e-5)
    expected = network.model.project_image(features.mean(0, keepdims=True))["multimodal"]
    np.testing.assert_allclose(network.blank(3)["multimodal"], np.repeat(expected, 3, 0), rtol=1e-4)


def test_an_export_is_the_run_that_it_was_made_from(models, tiny_job, tmp_path):
    original = run.Run.load(tiny_job)
    exported = run.Run.from_saved_model(str(models / "plain" / "1"))
    assert (exported.config, exported.step) == (original.config, original.step)
    assert exported.vocabulary.words == original.vocabulary.words
    assert exported.fingerprint == original.fingerprint
    for name in ("mean_features", "mean_normalized"):
        means = [getattr(each.network, name).numpy() for each in (exported, original)]
        assert means[0].any()
        np.testing.assert_array_equal(*means)
    assert run.Run.from_saved_model(str(models / "mrnn" / "1")).fingerprint != exported.fingerprint
    with pytest.raises(FileNotFoundError, match=r"holds no assets/config\.json"):
        run.Run.from_saved_model(str(tmp_path))


def test_an_export_with_the_weights_of_another_is_refused(models, tmp_path):
    shutil.copytree(models / "plain" / "1", tmp_path / "1")
    shutil.copytree(
        models / "mrnn" / "1" / "variables", tmp_path / "1" / "variables", dirs_exist_ok=True
    )
    (tmp_path / "1" / schema.CHECKSUMS_FILE).unlink()
    with pytest.raises(ValueError, match=r"variables/variables does not fit .*config\.json"):
        run.Run.from_saved_model(str(tmp_path / "1"))
    (tmp_path / "1" / "assets" / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="does not describe a run"):
        run.Run.from_saved_model(str(tmp_path / "1"))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(tiny_job, tmp_path, value):
    job = shutil.copytree(tiny_job, tmp_path / "job")
    trained = run.Run.load(str(job))
    weight = trained.network.model.embedding_1.embeddings
    weight.assign(tf.ones_like(weight) * value)
    tf.train.Checkpoint(network=trained.network).write(str(job / "checkpoints" / "best-00000999"))
    with pytest.raises(ValueError, match=r"best-00000999 holds NaN or infinity in .*embeddings"):
        run.Run.load(str(job))


def test_a_second_run_cannot_claim_a_directory_at_the_same_moment(tiny_job, tmp_path):
    from trainer import train

    present, options = run.Run.load(tiny_job), {"data": "none", "job_dir": str(tmp_path / "job")}
    options = train.TrainOptions(**options)
    with files.alone_in(options.job_dir), pytest.raises(ValueError, match="Another process"):
        train.claim(options, present)
    train.claim(options, present)
    other = RunConfig(**{**present.config.__dict__, "train": TrainConfig(seed=5)})
    with pytest.raises(ValueError, match=r"holds another run: train\."):
        train.claim(options, run.Run(other, present.vocabulary, present.network, 0))

"""TF Serving's configuration file: which versions are loaded, and what their labels mean."""

import asyncio
import logging
import shutil

import pytest
import served
from test_model_directory import poll, spec, states

from serving import model_config
from serving.model_directory import ModelDirectory
from serving.served_version import Refused

VERSIONS = (1, 2, 3)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    for version in VERSIONS:
        served.write(folder, version)
    served.write_broken(folder, 4)
    return folder


@pytest.fixture
def base(exported, tmp_path):
    """A folder with a model in three versions."""
    for version in VERSIONS:
        shutil.copytree(exported / "toy" / str(version), tmp_path / "toy" / str(version))
    return tmp_path


@pytest.fixture
def config(base):
    """Writes the configuration file: of one model, or any text."""

    def write(policy="", text=None, **labels):
        path = base / "models.config"
        pairs = "".join(f'version_labels {{ key: "{k}" value: {v} }}\n' for k, v in labels.items())
        fields = f'name: "toy" base_path: "toy" model_platform: "tensorflow"\n{pairs}'
        chosen = f"model_version_policy {{ {policy} }}" if policy else ""
        path.write_text(text or f"model_config_list {{ config {{ {fields} {chosen} }} }}")
        return str(path)

    return write


def labelled(models, label):
    return models.find(spec(version_label=label)).version


@pytest.mark.parametrize(
    ("policy", "loaded"),
    [
        ("", {3}),
        ("latest {}", {3}),
        ("latest { num_versions: 2 }", {2, 3}),
        ("specific { versions: 1 versions: 3 }", {1, 3}),
        ("all {}", {1, 2, 3}),
    ],
)
def test_policies(config, policy, loaded):
    models = ModelDirectory(print, config_file=config(policy))
    assert not models.ready
    poll(models)
    assert models.ready and "toy" in models and "other" not in models
    assert states(models) == dict.fromkeys(loaded, "AVAILABLE")
    assert models.find(spec()).version == 3
    for version in VERSIONS:
        if version in loaded:
            assert models.find(spec(version=version)).version == version
        else:
            with pytest.raises(Refused, match=rf"Specific\(toy, {version}\)"):
                models.find(spec(version=version))


def test_two_newest_move_on_and_a_broken_one_does_not_count(base, config, exported):
    models = ModelDirectory(print, config_file=config("latest { num_versions: 2 }"))
    poll(models)
    shutil.copytree(exported / "toy" / "4", base / "toy" / "4")
    poll(models)
    assert states(models) == {4: "END", 3: "AVAILABLE", 2: "AVAILABLE"}
    shutil.copytree(exported / "toy" / "3", base / "toy" / "5")
    poll(models)
    assert states(models) == {5: "AVAILABLE", 4: "END", 3: "AVAILABLE", 2: "END"}


def test_labels(config):
    path = config("specific { versions: 1 versions: 2 }", stable=1, canary=2)
    models = ModelDirectory(print, config_file=path)
    poll(models)
    assert labelled(models, "stable") == 1 and labelled(models, "canary") == 2
    assert models.find(spec()).version == 2
    [status] = models.status(spec(version_label="stable")).model_version_status
    assert status.version == 1
    with pytest.raises(Refused, match="Unrecognized servable version label: none"):
        models.find(spec(version_label="none"))
    with pytest.raises(Refused, match="Unrecognized servable version label: stable"):
        models.find(spec("other", version_label="stable"))

    config("specific { versions: 2 versions: 3 }", stable=2)  # all in one edit
    poll(models)
    assert labelled(models, "stable") == 2
    assert states(models) == {3: "AVAILABLE", 2: "AVAILABLE", 1: "END"}
    with pytest.raises(Refused, match="label: canary"):
        models.find(spec(version_label="canary"))


def test_a_label_of_a_version_that_is_not_available_is_refused(config, caplog):
    path = config("specific { versions: 1 }", stable=1, canary=2)
    models = ModelDirectory(print, config_file=path)
    with caplog.at_level(logging.ERROR):
        poll(models, times=3)
    assert caplog.messages == [
        "Request to assign label to version 2 of model toy, which is not currently available for "
        "inference: canary"
    ]
    assert labelled(models, "stable") == 1
    with pytest.raises(Refused, match="Unrecognized servable version label: canary"):
        models.find(spec(version_label="canary"))
    config("specific { versions: 1 versions: 2 }", stable=1, canary=2)
    poll(models)
    assert labelled(models, "canary") == 2


def test_a_label_stays_until_its_new_version_is_available(base, config, exported, caplog):
    models = ModelDirectory(print, config_file=config("specific { versions: 1 }", stable=1))
    poll(models)
    config("specific { versions: 2 versions: 4 }", stable=4)
    with caplog.at_level(logging.ERROR):
        poll(models, times=2)
    assert f"There is no version 4 of toy in {base}/toy" in caplog.messages
    assert labelled(models, "stable") == 1
    assert states(models) == {2: "AVAILABLE", 1: "AVAILABLE"}
    shutil.copytree(exported / "toy" / "4", base / "toy" / "4")  # broken
    poll(models)
    assert labelled(models, "stable") == 1
    shutil.rmtree(base / "toy" / "4")
    shutil.copytree(exported / "toy" / "3", base / "toy" / "4")
    poll(models)
    assert labelled(models, "stable") == 4
    assert states(models) == {4: "AVAILABLE", 2: "AVAILABLE", 1: "END"}


def test_a_request_keeps_the_version_that_its_label_had(config):
    models = ModelDirectory(print, config_file=config("specific { versions: 1 }", stable=1))

    async def main():
        await models.poll()
        held = models.find(spec(version_label="stable"))
        config("specific { versions: 2 }", stable=2)
        await models.poll()
        assert labelled(models, "stable") == 2
        assert states(models) == {2: "AVAILABLE", 1: "UNLOADING"}
        assert held.signature("").name == "serving_default"
        del held
        await models.poll()
        assert states(models) == {2: "AVAILABLE", 1: "END"}

    asyncio.run(main())


def test_a_model_that_leaves_the_file_is_unloaded(base, config):
    shutil.copytree(base / "toy", base / "other")
    models_ = "".join(
        f'config {{ name: "{name}" base_path: "{base}/{name}" model_platform: "tensorflow" }}'
        for name in ("other", "toy")
    )
    path = config(text=f"model_config_list {{ {models_} }}")
    models = ModelDirectory(print, config_file=path)
    poll(models)
    assert states(models) == states(models, "other") == {3: "AVAILABLE"}
    config()
    poll(models)
    assert states(models, "other") == {3: "END"} and states(models) == {3: "AVAILABLE"}
    assert models.ready and "other" not in models
    with pytest.raises(Refused, match=r"Latest\(other\)"):
        models.find(spec("other"))


def test_a_file_that_breaks_changes_nothing(base, config, caplog):
    models = ModelDirectory(print, config_file=config("specific { versions: 1 }"))
    poll(models)
    config(text="model_config_list { config {")
    with caplog.at_level(logging.ERROR):
        poll(models, times=3)
        [message] = caplog.messages
        assert "models.config is no ModelServerConfig: 1:" in message
        (base / "models.config").unlink()
        poll(models, times=2)
        assert len(caplog.messages) == 2
    assert states(models) == {1: "AVAILABLE"}
    config("specific { versions: 2 }")
    poll(models)
    assert states(models) == {2: "AVAILABLE", 1: "END"}


def test_base_paths(tmp_path):
    path = tmp_path / "models.config"
    names = {"a": "models/a", "b": "/models/b", "c": "gs://bucket/c"}
    listed = "".join(
        f'config {{ name: "{name}" base_path: "{base}" model_platform: "tensorflow" }}'
        for name, base in names.items()
    )
    path.write_text(f"model_config_list {{ {listed} }}")
    assert {name: each.base_path for name, each in model_config.read(str(path)).items()} == {
        **names,
        "a": f"{tmp_path}/models/a",
    }


ONE = 'config { name: "a" base_path: "b" model_platform: "tensorflow" }'
WRONG = {
    "": "has no model",
    "model_config_list {}": "has no model",
    "custom_model_config {}": "has no model",
    "model_config_list { x: 1 }": 'no field named "x"',
    f"model_config_list {{ {ONE} {ONE} }}": "names the model a twice",
    'model_config_list { config { name: "a" base_path: "b" } }': 'a model needs .* got name: "a"',
    'model_config_list { config { base_path: "b" } }': "a model needs name, base_path",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_is_one_sentence(tmp_path, text):
    path = tmp_path / "models.config"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"`model_config_file`: {path}.*{WRONG[text]}"):
        ModelDirectory(print, config_file=str(path))


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "models.config"
    path.write_bytes(b"\xff")
    with pytest.raises(ValueError, match="is no ModelServerConfig"):
        ModelDirectory(print, config_file=str(path))

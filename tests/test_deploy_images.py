"""What can be known of the images, TF Serving's own files and the commands without a cluster."""

import json
import os
import re
import subprocess
import sys
from fnmatch import fnmatch
from importlib import metadata

import pytest
from deployments import (
    DEPLOY,
    ROOT,
    TF_SERVING_FLAGS,
    argument,
    commands,
    flags,
    instructions,
    manifest,
    option_fields,
    pod,
)
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    wrappers_pb2,
)
from tensorflow_serving.config import model_server_config_pb2

from mrnn_tf import __version__, batch, schema

CONSTRAINTS = (ROOT / "constraints.txt").read_text()
README, BUILD = DEPLOY / "README.md", ROOT / "BUILD.md"
DOCKERFILES = ["train.Dockerfile", "beam.Dockerfile", "serving.Dockerfile"]
SERVER = pod(manifest("Deployment"))["containers"][0]
VERTEX_MODEL = json.loads((DEPLOY / "vertex" / "model.json").read_text())["model"]


# Commands


@pytest.mark.parametrize("module", ["trainer.prepare", "trainer.task", "export.index"])
def test_the_commands_of_the_documents_have_real_flags(module):
    """Flags of ours by the options of the program; the others must be Apache Beam's."""
    ours = option_fields(module).keys()
    for command in commands(BUILD, f"python -m {module}"):
        given = re.findall(r"--\S+", re.sub(r" (?!--)", "=", " ".join(command[3:])))
        foreign = [each for each in given if each[2:].split("=")[0] not in ours]
        assert len(foreign) < len(given) and not (foreign and module == "trainer.task")
        batch.parse_options(foreign)  # refuses what neither has


def test_the_image_gets_flags_that_its_program_has():
    [command] = commands(README, "docker run --rm --gpus")
    given = flags(command[command.index(f"mrnn-train:{__version__}") + 1 :])
    assert {"data", "job_dir"} < given.keys() <= option_fields("trainer.task").keys()


def test_every_runner_starts_workers_with_our_image():
    started = commands(BUILD, "python -m trainer.prepare") + commands(
        BUILD, "python -m export.index"
    )
    for runner, flag in {
        "DataflowRunner": "--sdk_container_image",
        "FlinkRunner": "--environment_config",
        "SparkRunner": "--environment_config",
    }.items():
        [command] = [each for each in started if f"--runner={runner}" in each]
        assert f"{flag}=REGISTRY/mrnn-beam:{__version__}" in command


@pytest.mark.parametrize(
    "arguments",
    [
        SERVER["args"],
        json.loads(argument("serving.Dockerfile", "CMD")),
        VERTEX_MODEL["containerSpec"]["args"],
    ],
    ids=["Kubernetes", "Docker", "Vertex AI"],
)
def test_tf_serving_has_the_flags_it_is_given(arguments):
    given = flags(arguments)
    assert given.keys() <= TF_SERVING_FLAGS
    for name, value in given.items():
        if name.endswith("_file"):
            folder, file = os.path.split(value)
            assert folder == "/config" and (DEPLOY / "tf_serving" / file).is_file()
    if "model_config_file" in given:
        # Else a label in the file at the start is an error.
        assert given["allow_version_labels_for_unavailable_models"] == "true"
        assert given["enable_batching"] == "true"


# TF Serving's own files


def parsed(file: str, message):
    return text_format.Parse((DEPLOY / "tf_serving" / file).read_text(), message)


def message_of(name: str, fields: dict[str, str]):
    """A message with fields of the given types: these protos are in no Python package."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{name}.proto", syntax="proto3", dependency=[wrappers_pb2.DESCRIPTOR.name]
    )
    message = file.message_type.add(name=name)
    for number, (field, kind) in enumerate(fields.items(), 1):
        added = message.field.add(name=field, number=number, label=1)
        if kind in ("bool", "string"):
            added.type = {"bool": 8, "string": 9}[kind]
        else:
            added.type, added.type_name = 11, kind
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()


def test_models_and_their_labels():
    config = parsed("models.config", model_server_config_pb2.ModelServerConfig())
    models = {each.name: each for each in config.model_config_list.config}
    assert models.keys() == {schema.MODEL, schema.INDEX}
    mount = next(each for each in SERVER["volumeMounts"] if each["name"] == "models")["mountPath"]
    for name, model in models.items():
        assert model.base_path == f"{mount}/{name}"
        assert model.model_platform == "tensorflow"
        pinned = model.model_version_policy.specific.versions
        assert pinned and set(model.version_labels.values()) <= set(pinned)
        assert model.version_labels.keys() == {"stable", "canary"}
    # A model and its index move together.
    one, other = models.values()
    assert one.version_labels == other.version_labels
    copies = [
        text.split()[-2:] for name, text in instructions("serving.Dockerfile") if name == "COPY"
    ]
    assert ["models", mount] in copies


def test_batches_are_as_large_as_clients_send():
    number, truth = ".google.protobuf.Int64Value", ".google.protobuf.BoolValue"
    names = [
        "max_batch_size", "batch_timeout_micros", "max_enqueued_batches", "num_batch_threads",
        "max_execution_batch_size",
    ]  # fmt: skip
    fields = dict.fromkeys(names, number) | {"enable_large_batch_splitting": truth}
    config = parsed("batching.config", message_of("BatchingParameters", fields))
    source = (ROOT / "serving" / "commands.py").read_text()
    [sent] = re.findall(r'DEFINE_integer\("batch_size", (\d+)', source)
    assert config.enable_large_batch_splitting.value
    assert int(sent) <= config.max_execution_batch_size.value <= config.max_batch_size.value
    assert config.num_batch_threads.value == int(SERVER["resources"]["limits"]["cpu"])
    assert config.batch_timeout_micros.value > 0 < config.max_enqueued_batches.value


def test_metrics_are_where_they_are_looked_for():
    message_of("PrometheusConfig", {"enable": "bool", "path": "string"})
    config = parsed(
        "monitoring.config",
        message_of("MonitoringConfig", {"prometheus_config": ".PrometheusConfig"}),
    )
    annotations = manifest("Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert config.prometheus_config.enable
    assert config.prometheus_config.path == annotations["prometheus.io/path"]


# Docker


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_dockerfiles_are_understood(dockerfile):
    known = {"FROM", "ENV", "ARG", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}
    names = [name for name, _ in instructions(dockerfile)]
    assert names[0] == "FROM" and set(names) <= known
    for name, text in instructions(dockerfile):
        if name == "FROM":
            assert re.fullmatch(r"\S+:\d+\.\d+\S*( AS \w+)?", text)
    for name in ("ENTRYPOINT", "CMD"):
        assert all(isinstance(each, str) for each in json.loads(argument(dockerfile, name)))
    if dockerfile != "beam.Dockerfile":  # whose workers are root, as in Beam's own image
        assert int(argument(dockerfile, "USER")) > 0
        last = max(at for at, name in enumerate(names) if name in ("RUN", "COPY"))
        assert names.index("USER") > last


def sources(dockerfile: str) -> list[str]:
    copies = [text.split() for name, text in instructions(dockerfile) if name == "COPY"]
    copies = [copy for copy in copies if not copy[0].startswith("--from=")]
    return [each for copy in copies for each in copy[:-1] if not each.startswith("--")]


def kept_by(dockerfile: str) -> set[str]:
    ignored = (DEPLOY / "docker" / f"{dockerfile}.dockerignore").read_text().splitlines()
    return {line[1:] for line in ignored if line.startswith("!")}


@pytest.mark.parametrize(
    ("dockerfile", "source"), [(file, each) for file in DOCKERFILES for each in sources(file)]
)
def test_what_is_copied_exists_and_reaches_the_builder(dockerfile, source):
    made = (ROOT / ".gitignore").read_text().splitlines()
    assert (ROOT / source).exists() or f"/{source}/" in made
    ignored = (DEPLOY / "docker" / f"{dockerfile}.dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    assert any(source == kept or source.startswith(f"{kept}/") for kept in kept_by(dockerfile))
    assert not any(fnmatch(source, pattern) for pattern in ignored[1:])


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_the_builder_gets_nothing_else(dockerfile):
    assert kept_by(dockerfile) <= set(sources(dockerfile))


def test_dependencies_come_before_the_sources():
    """A changed source file must not install everything again."""
    steps = instructions("train.Dockerfile")
    installs = [at for at, (name, text) in enumerate(steps) if name == "RUN" and "pip" in text]
    dependencies, package = installs
    before = [text for name, text in steps[:dependencies] if name == "COPY"]
    assert not any(f"COPY {name} " in f"COPY {text}" for text in before
                   for name in ("mrnn_tf", "trainer", "export", "serving"))  # fmt: skip
    assert "--constraint constraints.txt" in steps[dependencies][1]
    assert '".[${EXTRAS}]"' in steps[dependencies][1]
    assert "--no-deps --force-reinstall ." in steps[package][1]
    assert argument("train.Dockerfile", "ARG").split("=") == ["EXTRAS", "train,beam,gpu"]
    assert "PYTHONSAFEPATH=1" in argument("train.Dockerfile", "ENV").split()
    assert json.loads(argument("train.Dockerfile", "ENTRYPOINT")) == [
        "python", "-m", "trainer.task",
    ]  # fmt: skip


def test_a_checkout_does_not_hide_the_installed_package(tmp_path):
    """What PYTHONSAFEPATH in the image is for: the working directory is a user's folder."""
    (tmp_path / "mrnn_tf").mkdir()
    (tmp_path / "mrnn_tf" / "__init__.py").write_text("print('of the checkout')")
    said = [
        subprocess.run(
            [sys.executable, "-m", "mrnn_tf.schema"], cwd=tmp_path, capture_output=True, text=True,
            env=os.environ | safe, check=False,
        ).stdout
        for safe in ({}, {"PYTHONSAFEPATH": "1"})
    ]  # fmt: skip
    assert said == ["of the checkout\n", ""]


def test_a_worker_of_beam_boots_the_beam_that_is_pinned():
    [beam] = re.findall(r"^apache-beam==(.*)$", CONSTRAINTS, re.MULTILINE)
    images = [text for name, text in instructions("beam.Dockerfile") if name == "FROM"]
    assert images == [f"apache/beam_python3.11_sdk:{beam} AS sdk", f"mrnn-batch:{__version__}"]
    assert instructions("train.Dockerfile")[0][1].startswith("python:3.11-")
    assert argument("beam.Dockerfile", "COPY") == "--from=sdk /opt/apache/beam /opt/apache/beam"
    assert json.loads(argument("beam.Dockerfile", "ENTRYPOINT")) == ["/opt/apache/beam/boot"]


def test_the_wheels_of_cuda_are_pinned():
    """Those that tensorflow[and-cuda] asks for, by its own metadata."""
    asked = [each for each in metadata.requires("tensorflow") if "and-cuda" in each]
    names = {re.match(r"[\w-]+", each)[0] for each in asked}
    assert len(names) > 5
    assert names <= set(re.findall(r"^([\w-]+)==", CONSTRAINTS, re.MULTILINE))


def test_images_have_one_version():
    [tensorflow] = re.findall(r"^tensorflow==(.*)$", CONSTRAINTS, re.MULTILINE)
    text = "\n".join(
        path.read_text()
        for path in DEPLOY.rglob("*")
        if path.suffix in (".yaml", ".json", ".md", ".Dockerfile")
    )
    servers = re.findall(r"tensorflow[/-]serving:([\w.]+)", text)
    assert len(servers) > 5 and set(servers) == {tensorflow}
    ours = re.findall(r"mrnn-(?:train|batch|beam|serving):(\d+\.[\w.]*)", text)
    assert len(ours) > 5 and set(ours) == {__version__}


def test_files_named_in_the_readme_exist():
    text = (DEPLOY / "README.md").read_text()
    named = set(re.findall(r"serving/deploy/[\w/.]+\w", text))
    assert len(named) > 5
    assert all((ROOT / name).exists() for name in named)

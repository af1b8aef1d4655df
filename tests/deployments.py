"""The files of serving/deploy, read for the tests."""

import dataclasses
import importlib
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import yaml

from mrnn_tf.config import Config, ModelConfig, TrainConfig

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "serving" / "deploy"

# Those flags of tensorflow_model_server that we use, from its model_servers/main.cc.
TF_SERVING_FLAGS = {
    "port", "rest_api_port", "rest_api_num_threads", "model_name", "model_base_path",
    "model_config_file", "allow_version_labels_for_unavailable_models", "enable_batching",
    "batching_parameters_file", "monitoring_config_file", "ssl_config_file",
    "file_system_poll_wait_seconds", "grpc_channel_arguments", "grpc_max_threads",
    "tensorflow_intra_op_parallelism", "tensorflow_inter_op_parallelism",
}  # fmt: skip


def documents(pattern: str) -> list[dict]:
    """All YAML documents of the files that match."""
    return [
        document
        for path in sorted(DEPLOY.glob(pattern))
        for document in yaml.safe_load_all(path.read_text())
    ]


def kustomization() -> dict:
    [document] = documents("kustomization.yaml")
    return document


def applied() -> list[dict]:
    """What the kustomization applies, with its ConfigMaps."""
    resources = [each for name in kustomization()["resources"] for each in documents(name)]
    for generator in kustomization()["configMapGenerator"]:
        literals = dict(each.split("=", 1) for each in generator.get("literals", []))
        files = {
            Path(each).name: (DEPLOY / each).read_text() for each in generator.get("files", [])
        }
        metadata = {"name": generator["name"]}
        resources.append({"kind": "ConfigMap", "metadata": metadata, "data": literals | files})
    return resources


def rendered(folder: Path, components: list[str]) -> list[dict]:
    """What `kubectl kustomize` makes of the kustomization with components."""
    copy = shutil.copytree(DEPLOY, folder / "deploy")
    changed = kustomization() | {"components": components}
    (copy / "kustomization.yaml").write_text(yaml.safe_dump(changed))
    done = subprocess.run(["kubectl", "kustomize", copy], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def manifest(kind: str, name: str | None = None, among: list[dict] | None = None) -> dict:
    """The document of a kind, and of a name where there are several; kustomize adds hashes."""
    [found] = [
        document
        for document in among or documents("k8s/*.yaml")
        if document["kind"] == kind
        and (name is None or re.fullmatch(rf"{name}(-\w{{10}})?", document["metadata"]["name"]))
    ]
    return found


def pod(document: dict) -> dict:
    return document["spec"]["template"]["spec"]


def containers(document: dict) -> list[dict]:
    return pod(document).get("initContainers", []) + pod(document)["containers"]


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile and their arguments, lines joined."""
    text = (DEPLOY / "docker" / dockerfile).read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines()]


def argument(dockerfile: str, name: str) -> str:
    """The argument of the last instruction of a name."""
    return [text for each, text in instructions(dockerfile) if each == name][-1]


def option_fields(module: str) -> dict[str, dataclasses.Field]:
    """The flags of a program: the fields of its options and, for training, of its configuration."""
    program, home = importlib.import_module(module), f"{module.partition('.')[0]}.options"
    options = [
        value
        for value in vars(program).values()
        if isinstance(value, type) and issubclass(value, Config) and value.__module__ == home
    ]
    options += [ModelConfig, TrainConfig] if module == "trainer.task" else []
    fields = [field for each in options for field in dataclasses.fields(each)]
    return {field.name: field for field in fields if field.metadata}


def flags(arguments: list[str]) -> dict[str, str]:
    """`--name=value` as a dictionary; all arguments must be of this form, or `--name`."""
    pairs = [re.fullmatch(r"--([a-z_\-]+)(?:=(.*))?", each) for each in arguments]
    assert all(pairs), arguments
    return {pair[1]: pair[2] for pair in pairs}


def commands(file: Path, start: str) -> list[list[str]]:
    """The commands of a document that begin so, split as a shell would."""
    text = re.sub(r"\\\n\s*", "", file.read_text())
    found = [line.strip() for line in text.splitlines() if line.startswith("    " + start)]
    assert found, f"no command {start!r} in {file}"
    return [shlex.split(line, comments=True) for line in found]

"""The files of serving/deploy, read for the tests."""

import dataclasses
import importlib
import re
import shlex
from pathlib import Path

import yaml

from mrnn_tf.config import Config, ModelConfig, TrainConfig

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "serving" / "deploy"

# Those of tensorflow_model_server that its guide to configuration and its usage text name.
TF_SERVING_FLAGS = {
    "port", "rest_api_port", "model_name", "model_base_path", "model_config_file",
    "model_config_file_poll_wait_seconds", "allow_version_labels_for_unavailable_models",
    "enable_batching", "batching_parameters_file", "monitoring_config_file", "ssl_config_file",
    "file_system_poll_wait_seconds", "enable_model_warmup", "grpc_channel_arguments",
}  # fmt: skip


def documents(pattern: str) -> list[dict]:
    """All YAML documents of the files that match."""
    return [
        document
        for path in sorted(DEPLOY.glob(pattern))
        for document in yaml.safe_load_all(path.read_text())
    ]


def manifest(kind: str, pattern: str = "k8s/*.yaml") -> dict:
    [found] = [document for document in documents(pattern) if document["kind"] == kind]
    return found


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile and their arguments, lines joined."""
    text = (DEPLOY / "docker" / dockerfile).read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines()]


def argument(dockerfile: str, name: str) -> str:
    """The argument of the last instruction of a name."""
    return [text for each, text in instructions(dockerfile) if each == name][-1]


def defined_flags(module: str) -> set[str]:
    """The flags of a program: the fields of its options and, for training, of its configuration."""
    program = importlib.import_module(module)
    options = [
        value
        for value in vars(program).values()
        if isinstance(value, type) and issubclass(value, Config) and value.__module__ == module
    ]
    options += [ModelConfig, TrainConfig] if module == "trainer.task" else []
    fields = [field for each in options for field in dataclasses.fields(each)]
    return {field.name for field in fields if field.metadata}


def flags(arguments: list[str]) -> dict[str, str]:
    """`--name=value` as a dictionary; all arguments must be of this form, or `--name`."""
    pairs = [re.fullmatch(r"--([a-z_\-]+)(?:=(.*))?", each) for each in arguments]
    assert all(pairs), arguments
    return {pair[1]: pair[2] for pair in pairs}


def readme_commands(start: str) -> list[list[str]]:
    """The commands of the README that begin so, split as a shell would."""
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "README.md").read_text())
    found = [line.strip() for line in text.splitlines() if line.startswith("    " + start)]
    assert found, f"no command {start!r} in the README"
    return [shlex.split(line, comments=True) for line in found]

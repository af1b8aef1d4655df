"""Writes a run as a SavedModel, checked before anybody can see it."""

import os
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf
from absl import logging
from tensorflow.core.protobuf import fingerprint_pb2, saved_model_pb2
from tensorflow.python.framework import ops
from tensorflow.python.saved_model import fingerprinting_utils

from export import check, warmup
from mrnn_tf import files, schema, versions
from mrnn_tf.errors import UserError
from mrnn_tf.inference import Inference
from mrnn_tf.run import Run

_FIRST_NUMBER = 1_000_000  # more than a job needs for its parts


def export_run(run: Run, inference: Inference, directory: str) -> None:
    """Writes a checked SavedModel of a run to a directory, which must not hold one yet."""
    encoder = inference.encoder
    attached = encoder.describe() if encoder and "name" not in run.config.encoder else {}
    facts = {
        "encoder": {**attached, **run.config.encoder},
        "settings": inference.settings,
    }
    write(inference, run, facts, check.expected, directory)


def write(
    servable: warmup.Exportable,
    run: Run,
    facts: dict,
    expected: check.Expected,
    directory: str,
    add: Callable[[str], None] = lambda extra: None,
) -> None:
    """Writes what is served as a SavedModel, checked before it appears.

    Args:
        servable: the signatures, and what owns their variables and tables.
        run: Run, whose configuration and vocabulary become assets.
        facts: dict of what else `config.json` says.
        expected: what the signatures should say.
        directory: str. Where it appears, whole.
        add: Callable. Writes files for people into the folder `assets.extra`.
    """
    refuse_overwriting(directory)
    with tempfile.TemporaryDirectory() as folder:
        built = os.path.join(folder, "model")
        config = os.path.join(folder, schema.CONFIG_FILE)
        words = os.path.join(folder, schema.VOCABULARY_FILE)
        files.write_json(config, {"run": run.config.to_dict(), "step": run.step, **facts})
        run.vocabulary.save(words)
        functions, root = servable.signatures(), servable.tracked()
        root.assets = [tf.saved_model.Asset(config), tf.saved_model.Asset(words)]
        tf.saved_model.save(root, built, functions)
        _share_default(built, servable.default)
        _derive_id(Path(built, "fingerprint.pb"))
        path = os.path.join(built, schema.WARMUP_FILE)
        os.makedirs(os.path.dirname(path))
        warmup.write(path, servable, functions)
        add(os.path.dirname(path))
        logging.info("Checking every signature in a fresh process")
        check.check(built, servable, list(functions), expected)
        program = "export.index" if servable.name == schema.INDEX else "export.task"
        versions.seal(built, f"python -m {program}")
        files.publish(built, directory, last=schema.SAVED_MODEL_FILE)


def number_names_anew() -> None:
    """Gives what is made from here on the same names, whatever the process has traced before.

    TensorFlow ends the names of functions and tables with a number that only grows.
    """
    while ops.uid() < _FIRST_NUMBER:
        pass


def _share_default(directory: str, default: str) -> None:
    """Gives `serving_default` the tensors of the signature that it stands for.

    TensorFlow saves a graph for each; a server would optimise and keep both.
    """
    path = Path(directory, schema.SAVED_MODEL_FILE)
    saved = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    [graph] = saved.meta_graphs
    graph.signature_def[schema.SERVING_DEFAULT].CopyFrom(graph.signature_def[default])
    path.write_bytes(saved.SerializeToString(deterministic=True))
    fingerprinting_utils.write_fingerprint(directory)


def _derive_id(path: Path) -> None:
    """Takes the id of a SavedModel from its hashes, not at random: equal runs, equal bytes."""
    fingerprint = fingerprint_pb2.FingerprintDef.FromString(path.read_bytes())
    fingerprint.uuid = ""
    hashes = fingerprint.SerializeToString(deterministic=True).hex()
    fingerprint.uuid = str(uuid.uuid5(uuid.NAMESPACE_OID, hashes))
    path.write_bytes(fingerprint.SerializeToString(deterministic=True))


def refuse_overwriting(directory: str) -> None:
    """Raises `UserError` where a directory holds a SavedModel."""
    if versions.is_whole(directory):
        raise UserError(f"{directory} holds a model already: it is not overwritten.")


def version_directory(output: str, version: int | None) -> str:
    """The directory of a version, by default of one more than the newest in a model's folder."""
    if tf.io.gfile.exists(output) and not tf.io.gfile.isdir(output):
        raise UserError(f"`output` {output} is a file: name a folder of versions.")
    if versions.is_whole(output) and not versions.numbers(output):
        raise UserError(f"`output` {output} is a version itself: name the folder above it.")
    names = tf.io.gfile.listdir(output) if tf.io.gfile.isdir(output) else []
    for name in (name.rstrip("/") for name in names):
        folder = tf.io.gfile.join(output, name)
        if not versions.NUMBER.fullmatch(name) and versions.numbers(folder):
            raise UserError(f"`output` {output} holds several models: name one, such as {folder}.")
    if version is None:
        version = max(versions.numbers(output), default=0) + 1
    return tf.io.gfile.join(output, str(version))

"""Writes a run as a SavedModel, checked before anybody can see it."""

import dataclasses
import os
import tempfile
from collections.abc import Callable

import tensorflow as tf
from absl import logging

from export import check, warmup
from export.signatures import Servable, Settings, signatures
from mrnn_tf import files, schema
from mrnn_tf.errors import UserError
from mrnn_tf.run import FINETUNED, Run
from mrnn_tf.vision import encoders

_MARKER = "saved_model.pb"


def attached_encoder(run: Run, name: str | None, weights: str | None) -> encoders.Encoder | None:
    """The encoder of a run's features, or the named one; `None` where none is known."""
    if run.network.encoder is not None:
        if name or weights:
            raise UserError(f"--encoder: the run has its own, {FINETUNED}; leave the flag out.")
        return run.network.encoder
    known = run.config.encoder
    if name is None and "name" not in known:
        if weights:
            raise UserError("--encoder_weights: --encoder must name the encoder that they are of.")
        logging.info("The run has precomputed features: exporting without an image encoder.")
        return None
    encoder = encoders.create(name or known["name"], weights, known.get("crops", 1))
    if encoder.feature_size != run.config.feature_size:
        raise UserError(
            f"--encoder {encoder.name} makes {encoder.feature_size} features, but the run was "
            f"trained on {run.config.feature_size} of {known['identity']}."
        )
    if "name" in known and encoder.identity != known["identity"]:
        raise UserError(
            f"--encoder_weights: the encoder would be {encoder.identity}, but the run was trained "
            f"on {known['identity']}."
        )
    if "name" not in known:
        logging.warning(
            "Attaching %s to %s: that these are its features cannot be checked.",
            encoder.identity,
            known["identity"],
        )
    return encoder


def export(run: Run, encoder: encoders.Encoder | None, settings: Settings, directory: str) -> None:
    """Writes a checked SavedModel of a run to a directory, which must not hold one yet."""
    attached = encoder.describe() if encoder and "name" not in run.config.encoder else {}
    facts = {
        "encoder": {**attached, **run.config.encoder},
        "settings": dataclasses.asdict(settings),
    }
    refuse_overwriting(directory)
    servable = Servable(run, encoder, settings)
    write(servable, signatures(servable), run, facts, check.expected, directory)


def write(
    servable: warmup.Servable,
    functions: dict[str, tf.types.experimental.ConcreteFunction],
    run: Run,
    facts: dict,
    expected: check.Expected,
    directory: str,
    add: Callable[[str], None] = lambda extra: None,
) -> None:
    """Writes what is served as a SavedModel, checked before it appears.

    Args:
        servable: what owns the variables and the tables of the functions.
        functions: dict, the signatures by name.
        run: Run, whose configuration and vocabulary become assets.
        facts: dict of what else `config.json` says.
        expected: what the signatures should say.
        directory: str. Where it appears, whole.
        add: Callable. Writes files for people into the folder `assets.extra`.
    """
    with tempfile.TemporaryDirectory() as folder:
        built = os.path.join(folder, "model")
        config = os.path.join(folder, schema.CONFIG_FILE)
        words = os.path.join(folder, schema.VOCABULARY_FILE)
        files.write_json(config, {"run": run.config.to_dict(), "step": run.step, **facts})
        run.vocabulary.save(words)
        root = servable.tracked()
        root.assets = [tf.saved_model.Asset(config), tf.saved_model.Asset(words)]
        tf.saved_model.save(root, built, functions)
        path = os.path.join(built, warmup.PATH)
        os.makedirs(os.path.dirname(path))
        warmup.write(path, servable, functions)
        add(os.path.dirname(path))
        logging.info("Checking every signature in a fresh process")
        check.check(built, servable, list(functions), expected)
        files.publish(built, directory, last=_MARKER)


def refuse_overwriting(directory: str) -> None:
    """Raises `ValueError` where a directory holds a SavedModel."""
    if is_there(directory):
        raise UserError(f"{directory} holds a model already: it is not overwritten.")


def is_there(directory: str) -> bool:
    """Whether a directory holds a whole SavedModel."""
    return tf.io.gfile.exists(tf.io.gfile.join(directory, _MARKER))


def next_version(output: str) -> int:
    """One more than the newest version in a model's folder."""
    names = tf.io.gfile.listdir(output) if tf.io.gfile.isdir(output) else []
    there = [int(name.rstrip("/")) for name in names if name.rstrip("/").isdigit()]
    return max(there, default=0) + 1

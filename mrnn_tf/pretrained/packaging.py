"""Writes a run as a small folder that can be shipped, and loads it."""

import dataclasses
import json
import os
import tempfile
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from mrnn_tf import checksums, files, schema
from mrnn_tf.config import RunConfig
from mrnn_tf.errors import UserError
from mrnn_tf.inference import attached_encoder
from mrnn_tf.pretrained import MARKER_FILE, WEIGHTS_FILE, Card
from mrnn_tf.run import Run, build
from mrnn_tf.text import Vocabulary
from mrnn_tf.vision.safetensors_file import read_safetensors

MAX_BYTES = 10 << 20
_FILES = (schema.CONFIG_FILE, schema.VOCABULARY_FILE, WEIGHTS_FILE)


def package(run: Run, folder: str, card: Card, encoder: str | None = None) -> None:
    """Writes a run to a new folder, whole, with weights of 16 bits.

    The folder has the identity of the image encoder and not its weights: loading it creates the
    encoder and compares. A run on precomputed features needs the name of the `encoder`.
    """
    config = run.config
    if config.train.finetune_encoder:
        raise UserError("The run has trained its own encoder, whose weights are not packaged.")
    attached = attached_encoder(run, encoder)
    if attached is None:
        raise UserError("`encoder` is required: the run has precomputed features.")
    description = {"identity": attached.identity, **attached.describe()}
    # The run that another one began with is a path of the machine that trained it.
    train = dataclasses.replace(config.train, initial_run="")
    config = dataclasses.replace(config, encoder=description, train=train)
    facts = {**dataclasses.asdict(card), "step": run.step}
    with tempfile.TemporaryDirectory() as made:
        files.write_json(os.path.join(made, schema.CONFIG_FILE), config.to_dict())
        run.vocabulary.save(os.path.join(made, schema.VOCABULARY_FILE))
        files.write_whole(os.path.join(made, WEIGHTS_FILE), _safetensors(_halved(run)))
        checksums.write(os.path.join(made, MARKER_FILE), facts, made, _FILES)
        size = sum(os.path.getsize(os.path.join(made, name)) for name in os.listdir(made))
        if size > MAX_BYTES:
            raise UserError(
                f"The packaged model would have {size:,} bytes, and {MAX_BYTES:,} are shipped: "
                "train a smaller one."
            )
        files.publish(made, folder.rstrip("/"), last=MARKER_FILE)


def load(folder: str) -> Run:
    """The run of a packaged model; refuses a damaged folder."""
    marker = os.path.join(folder, MARKER_FILE)
    remedy = "install the package again, or package the run again"
    facts, sums = checksums.read(marker, "the marker of a model is wanted", folder, remedy)
    sums.check(*_FILES)
    path = os.path.join(folder, schema.CONFIG_FILE)
    try:
        config = RunConfig.from_dict(files.read_json(path, "the settings of a run are wanted"))
        step = int(facts["step"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder} does not hold a packaged model: {error}") from error
    vocabulary = Vocabulary.load(os.path.join(folder, schema.VOCABULARY_FILE))
    network = build(config)
    network.add_mean_normalized()
    run = Run(config, vocabulary, network, step)
    weights = read_safetensors(os.path.join(folder, WEIGHTS_FILE))
    for name, variable in _variables(run).items():
        if name not in weights or weights[name].shape != tuple(variable.shape):
            raise UserError(f"{folder}/{WEIGHTS_FILE} does not fit its settings at {name}.")
        variable.assign(weights[name].astype(np.float32))
    return run


def is_packaged(folder: str) -> bool:
    """Whether a folder holds a packaged model."""
    return tf.io.gfile.exists(os.path.join(folder, MARKER_FILE))


def _variables(run: Run) -> dict:
    """The variables that are shipped, by name."""
    weights = {variable.path: variable for variable in run.network.model.trainable_variables}
    return {**weights, **run.network.means}


def _halved(run: Run) -> dict[str, np.ndarray]:
    arrays = {}
    for name, variable in _variables(run).items():
        with np.errstate(over="ignore"):
            arrays[name] = variable.numpy().astype(np.float16)
        if not np.isfinite(arrays[name]).all():
            raise UserError(f"The weights {name} do not fit into 16 bits.")
    return arrays


def _safetensors(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The content of a safetensors file: the same arrays give the same bytes."""
    entries, begin = {}, 0
    for name, array in arrays.items():
        offsets = [begin, begin + array.nbytes]
        entries[name] = {"dtype": "F16", "shape": array.shape, "data_offsets": offsets}
        begin = offsets[1]
    header = json.dumps(entries).encode()
    values = [np.ascontiguousarray(array, "<f2").tobytes() for array in arrays.values()]
    return b"".join([len(header).to_bytes(8, "little"), header, *values])

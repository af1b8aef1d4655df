"""The signature `model_info`: what a servable says of itself, one value for every key."""

import json
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.run import Run

KEYS = tf.TensorSpec([None], tf.string, schema.KEYS)


class ModelInfo(tf.Module):
    """Facts by their keys, as a table that a SavedModel owns.

    Attributes:
        facts: dict of str. The fingerprints of the run, its step and feature size, and as JSON the
            `settings` that were fixed at export.
    """

    def __init__(self, run: Run, settings: Mapping[str, Any]):
        super().__init__(name=schema.MODEL_INFO)
        self.facts = {
            **run.fingerprints,
            schema.STEP: str(run.step),
            schema.FEATURE_SIZE: str(run.config.feature_size),
            schema.SETTINGS: json.dumps(settings),
        }
        pairs = tf.lookup.KeyValueTensorInitializer([*self.facts], [*self.facts.values()])
        self._table = tf.lookup.StaticHashTable(pairs, "")

    def lookup(self, keys: tf.Tensor) -> dict[str, tf.Tensor]:
        """The values [B] of keys [B]; "" of an unknown key."""
        return {schema.VALUES: self._table.lookup(keys)}

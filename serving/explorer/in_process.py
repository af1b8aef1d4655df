"""The model of this process, asked in the words of the client."""

import os
import threading
from collections.abc import Mapping

import grpc
import numpy as np
import tensorflow as tf

from mrnn_tf import photos, schema, versions
from mrnn_tf.captioner import Captioner, Signature, load_signatures
from serving.channel import MissingSignatureError, ServingError
from serving.client import Client
from serving.tensors import ArrayOrStrings

# Traced before the page is shown: tracing takes seconds, and is not safe in two threads at once.
_AT_ONCE = (schema.ENCODE_IMAGE, schema.BEAM_DECODE, schema.NEXT_WORD)
_PICTURE = photos.load(np.full((8, 8, 3), 127, np.uint8))


class InProcess(Client):
    """Answers as a server of the model would, with the index that lies beside it, if one does."""

    def __init__(self, captioner: Captioner):
        self.server, self.versions, self._together = "this process", {}, set()
        self._models: dict[str, Mapping[str, Signature]] = {schema.MODEL: captioner.signatures}
        self._served = {schema.MODEL: _number(captioner.model), schema.INDEX: None}
        self._lock = threading.Lock()
        version = versions.newest(captioner.model)
        if version:
            beside = os.path.join(
                os.path.dirname(os.path.dirname(version.rstrip("/"))), schema.INDEX
            )
            if index := versions.newest(beside):
                self._models[schema.INDEX] = load_signatures(index, schema.SEARCH_IMAGES)
                self._served[schema.INDEX] = _number(index)
        for signature in _AT_ONCE:
            if signature in captioner.signatures:
                captioner.signatures[signature]

    def warm_up(self) -> None:
        """Asks what the page asks first: TensorFlow optimises a graph when it first runs."""
        features = self.encode([_PICTURE])[schema.FEATURES]
        self.beam(features)
        self.next_words(features, ["a"])

    def close(self) -> None:
        """Nothing is open."""

    def status(self) -> dict[str, dict[int, str]]:
        return {m: {} if v is None else {v: "AVAILABLE"} for m, v in self._served.items()}

    def is_loading(self, model: str) -> bool:
        return False

    def _answer(
        self,
        model: str,
        signature: str,
        inputs: Mapping[str, ArrayOrStrings],
        version: int | str | None,
    ) -> tuple[dict[str, np.ndarray], int | None]:
        if model not in self._models:
            sentence = f"there is no {model} beside the model."
            raise ServingError(sentence, grpc.StatusCode.NOT_FOUND)
        with self._lock:
            function = self._models[model].get(signature)
        if function is None:
            sentence = f"{model} has no signature {signature}."
            raise MissingSignatureError(sentence, grpc.StatusCode.NOT_FOUND)
        outputs = function(**{name: tf.constant(values) for name, values in inputs.items()})
        arrays = {name: value.numpy() for name, value in outputs.items()}
        return arrays, self._served[model]


def _number(path: str) -> int:
    """The number of a version; 0 of what is none."""
    version = os.path.basename((versions.newest(path) or "0").rstrip("/"))
    return int(version) if versions.NUMBER.fullmatch(version) else 0

"""A loaded version of a model, and its signatures, which check inputs before the graph runs.

A request that gets no answer is `Refused`, by a gRPC code and one sentence, whatever the transport.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  Its ops may be in a model.
from tensorflow.core.framework import tensor_pb2
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef, TensorInfo
from tensorflow_serving.apis import model_pb2, predict_pb2, prediction_log_pb2

from mrnn_tf import schema, versions
from mrnn_tf.errors import UserError
from serving import tensors

Arrays = dict[str, np.ndarray]
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_FRAME = re.compile(r".*<stack traces unavailable>\n|\s*\[\[\{\{node.*|\s*\[Op:.*", re.DOTALL)
_FOLDERS = re.compile(r"(?<![\w./])(?:\w+:/)?/(?:[^\s/:;,'\"]+/)+")
_LONGEST = 400  # gRPC sends the sentence in a header


class Refused(Exception):
    """Says why a request is not answered."""

    def __init__(self, sentence: str, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT):
        text = " ".join(sentence.split())
        super().__init__(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")
        self.code = code

    @classmethod
    def by_graph(cls, error: tf.errors.OpError) -> "Refused":
        """The complaint of an op, without the names of TensorFlow's own functions."""
        sentence = _FRAME.sub("", error.message or "") or type(error).__name__
        return cls(sentence, _CODES.get(error.error_code, grpc.StatusCode.UNKNOWN))

    def without_folders(self, folder: str) -> "Refused":
        """The same for clients, which need not know where the server keeps its files."""
        return Refused(_FOLDERS.sub("", str(self).replace(f"{folder}/", "")), self.code)


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def from_proto(
    name: str, _: tf.TensorSpec, proto: tensor_pb2.TensorProto, max_bytes: int = tensors.MAX_BYTES
) -> np.ndarray:
    """The input of that name, unless it is larger than `max_bytes`."""
    try:
        return tensors.to_array(proto, max_bytes)
    except UserError as error:
        raise Refused(f"input `{name}`: {error}") from None


@dataclasses.dataclass(frozen=True, eq=False)
class ServedSignature:
    """A function from named arrays to named arrays."""

    model: str
    name: str
    inputs: dict[str, tf.TensorSpec]
    outputs: tuple[str, ...]
    batched: bool  # whether the first dimension of all tensors is the batch
    function: Callable[[Arrays], Arrays]

    @classmethod
    def load(
        cls, model: str, name: str, definition: SignatureDef, session: tf.compat.v1.Session
    ) -> "ServedSignature":
        """A signature of a SavedModel that a session has loaded."""
        inputs, outputs = definition.inputs, definition.outputs
        specs = {key: _spec(info) for key, info in sorted(inputs.items())}
        shapes = [*(spec.shape for spec in specs.values()), *map(_shape, outputs.values())]
        batched = bool(inputs) and all(shape.rank and shape[0] is None for shape in shapes)
        batched &= name not in schema.UNBATCHED
        fetches = {key: info.name for key, info in outputs.items()}

        def run(arrays: Arrays) -> Arrays:
            fed = {inputs[key].name: array for key, array in arrays.items()}
            return {key: np.asarray(got) for key, got in session.run(fetches, fed).items()}

        return cls(model, name, specs, tuple(sorted(outputs)), batched, run)

    def read(self, values: Mapping[str, Any], to_array: Callable[..., np.ndarray]) -> Arrays:
        """The inputs of a request; `to_array` takes the name, the spec and the value of each."""
        self.check_names(values)
        inputs = {}
        for name, spec in self.inputs.items():
            array = inputs[name] = to_array(name, spec, values[name])
            wanted, got = spec.dtype.name, tf.as_dtype(array.dtype).name
            if got != wanted:
                raise Refused(f"input `{name}` must be {wanted}, got {got}.")
            if not spec.shape.is_compatible_with(array.shape):
                wanted = str(spec.shape.as_list()).replace("None", "?")
                got = list(array.shape)
                raise Refused(f"input `{name}` must have the shape {wanted}, got {got}.")
        return inputs

    def check_names(self, names: Iterable[str]) -> None:
        if unknown := listed(sorted(set(names) - set(self.inputs))):
            known = listed(self.inputs)
            raise Refused(f"signature `{self.name}` has no input {unknown}, but {known}.")
        if missing := listed(sorted(set(self.inputs) - set(names))):
            raise Refused(f"signature `{self.name}` misses its input {missing}.")

    def rows(self, inputs: Arrays) -> int:
        """The batch size that all inputs share."""
        if not self.batched:
            return 1
        rows, *others = {len(array) for array in inputs.values()}
        if others:
            counts = ", ".join(f"`{name}` {len(array)}" for name, array in inputs.items())
            raise Refused(f"inputs must have equally many rows, got {counts}.")
        if not rows:
            raise Refused(f"input `{next(iter(inputs))}` has no rows.")
        return rows

    def choose(self, output_filter: Sequence[str]) -> Sequence[str]:
        """The outputs that a request asks for; all if it names none."""
        if unknown := listed(sorted(set(output_filter) - set(self.outputs))):
            known = listed(self.outputs)
            raise Refused(f"output tensor alias not found in signature: {unknown}; it has {known}")
        if len(set(output_filter)) < len(output_filter):
            raise Refused("output_filter names an output twice.")
        return output_filter or self.outputs

    def __call__(self, inputs: Arrays) -> Arrays:
        return self.function(inputs)


def _shape(info: TensorInfo) -> tf.TensorShape:
    return tf.TensorShape(info.tensor_shape)


def _spec(info: TensorInfo) -> tf.TensorSpec:
    return tf.TensorSpec(_shape(info), tf.as_dtype(info.dtype))


class ServedVersion:
    """A version of a model, loaded and warmed up; it stays loaded as long as a request holds it.

    It has a session of its own, as in TF Serving: of what `tf.saved_model.load` makes, TensorFlow
    keeps optimised functions for ever, about 15 MB a version.
    """

    def __init__(self, name: str, version: int, path: str, intra_op_threads: int | None = None):
        self.name = name
        self.version = version
        config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=intra_op_threads or 0)
        session, graph = versions.load_session(path, config)
        self.definitions = dict(graph.signature_def)
        self.signatures = {
            key: ServedSignature.load(name, key, definition, session)
            for key, definition in self.definitions.items()
            if not key.startswith("__")  # how TensorFlow itself restores it
        }
        for request in warmup_requests(path):
            signature = self.signature(request.model_spec.signature_name)
            signature(signature.read(request.inputs, from_proto))

    def signature(self, name: str) -> ServedSignature:
        name = name or schema.SERVING_DEFAULT
        if name not in self.signatures:
            known = ", ".join(sorted(self.signatures))
            sentence = f'Serving signature key "{name}" not found; `{self.name}` has {known}'
            raise Refused(sentence, grpc.StatusCode.FAILED_PRECONDITION)
        return self.signatures[name]

    def spec(self, signature_name: str = "") -> model_pb2.ModelSpec:
        """How an answer names the version."""
        version = {"value": self.version}
        return model_pb2.ModelSpec(name=self.name, version=version, signature_name=signature_name)


def warmup_requests(path: str) -> Iterator[predict_pb2.PredictRequest]:
    """The requests with which a SavedModel asks to be warmed up."""
    records = tf.io.gfile.join(path, schema.WARMUP_FILE)
    if tf.io.gfile.exists(records):
        for record in tf.data.TFRecordDataset(records).as_numpy_iterator():
            log = prediction_log_pb2.PredictionLog.FromString(record)
            if log.HasField("predict_log"):
                yield log.predict_log.request

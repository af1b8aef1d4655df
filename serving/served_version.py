"""A loaded version of a model, and its signatures, which check inputs before the graph runs."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import grpc
import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  Its ops may be in a model.
from tensorflow.core.framework import tensor_pb2
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import model_pb2, predict_pb2, prediction_log_pb2

from mrnn_tf import schema
from mrnn_tf.errors import UserError
from serving import tensors
from serving.refusal import Refused, listed

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class ServedSignature:
    """A function from named arrays to named arrays.

    Attributes:
        inputs: The wanted tensors by name.
        outputs: The names of what comes back.
        batched: Whether the first dimension of all tensors is the batch.
    """

    name: str
    inputs: dict[str, tf.TensorSpec]
    outputs: tuple[str, ...]
    batched: bool
    function: Callable

    @classmethod
    def load(cls, name: str, function: tf.types.experimental.ConcreteFunction) -> "ServedSignature":
        """A signature of a loaded SavedModel."""
        inputs, outputs = function.structured_input_signature[1], function.structured_outputs
        specs = [*inputs.values(), *outputs.values()]
        batched = bool(inputs) and all(s.shape.rank and s.shape[0] is None for s in specs)
        return cls(name, dict(sorted(inputs.items())), tuple(sorted(outputs)), batched, function)

    def read(
        self, protos: Mapping[str, tensor_pb2.TensorProto], max_bytes: int = tensors.MAX_BYTES
    ) -> Arrays:
        """The inputs that a request holds, none larger than `max_bytes`."""
        self.check_names(protos)
        inputs = {}
        for name, proto in protos.items():
            try:
                inputs[name] = tensors.to_array(proto, max_bytes)
            except UserError as error:
                raise Refused(f"input `{name}`: {error}") from None
        self.check(inputs)
        return inputs

    def check_names(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.inputs:
                known = listed(self.inputs)
                raise Refused(f"signature `{self.name}` has no input `{name[:100]}`, but {known}.")
        for name in self.inputs:
            if name not in names:
                raise Refused(f"signature `{self.name}` misses its input `{name}`.")

    def check(self, inputs: Arrays) -> None:
        """Raises `Refused` where an input has another type or shape."""
        for name, array in inputs.items():
            spec, dtype = self.inputs[name], tf.as_dtype(array.dtype)
            if dtype != spec.dtype:
                raise Refused(f"input `{name}` must be {spec.dtype.name}, got {dtype.name}.")
            if not spec.shape.is_compatible_with(array.shape):
                wanted = ", ".join("?" if size is None else str(size) for size in spec.shape)
                got = list(array.shape)
                raise Refused(f"input `{name}` must have the shape [{wanted}], got {got}.")

    def rows(self, inputs: Arrays) -> int:
        """The batch size that all inputs share."""
        if not self.batched:
            return 1
        sizes = {name: len(array) for name, array in inputs.items()}
        (name, rows), *others = sizes.items()
        if any(size != rows for _, size in others):
            counts = ", ".join(f"`{name}` {size}" for name, size in sizes.items())
            raise Refused(f"inputs must have equally many rows, got {counts}.")
        if not rows:
            raise Refused(f"input `{name}` has no rows.")
        return rows

    def choose(self, output_filter: Sequence[str]) -> Sequence[str]:
        """The outputs that a request asks for; all if it names none."""
        for name in output_filter:
            if name not in self.outputs:
                raise Refused(
                    f"output tensor alias not found in signature: `{name[:100]}`; "
                    f"it gives {listed(self.outputs)}"
                )
        if len(set(output_filter)) < len(output_filter):
            raise Refused("output_filter names an output twice.")
        return output_filter or self.outputs

    def __call__(self, inputs: Arrays) -> Arrays:
        constants = {n: tf.constant(inputs[n], spec.dtype) for n, spec in self.inputs.items()}
        return {name: output.numpy() for name, output in self.function(**constants).items()}


class ServedVersion:
    """A version of a model, loaded from the directory `path` and warmed up.

    It stays loaded as long as a request holds it.
    """

    def __init__(self, name: str, version: int, path: str):
        self.name = name
        self.version = version
        with tf.io.gfile.GFile(tf.io.gfile.join(path, schema.SAVED_MODEL_FILE), "rb") as file:
            saved = saved_model_pb2.SavedModel.FromString(file.read())
        [graph] = [graph for graph in saved.meta_graphs if "serve" in graph.meta_info_def.tags]
        self.definitions = dict(graph.signature_def)
        self._loaded = tf.saved_model.load(path)  # owns the variables
        self.signatures = {
            key: ServedSignature.load(key, function)
            for key, function in self._loaded.signatures.items()
        }
        for request in warmup_requests(path):
            signature = self.signature(request.model_spec.signature_name)
            signature(signature.read(request.inputs))

    def signature(self, name: str) -> ServedSignature:
        name = name or schema.SERVING_DEFAULT
        if name not in self.signatures:
            known = ", ".join(sorted(self.signatures))
            raise Refused(
                f'Serving signature key "{name[:100]}" not found; `{self.name}` has {known}',
                grpc.StatusCode.FAILED_PRECONDITION,
            )
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

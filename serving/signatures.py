"""A signature of a SavedModel: what it takes, checked before the graph is touched."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from serving import refusal

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class Signature:
    """A function from named arrays to named arrays.

    Attributes:
        inputs: The wanted tensors by name.
        outputs: The names of what comes back.
        batched: Whether the first dimension of all tensors counts the rows of a batch.
    """

    name: str
    inputs: dict[str, tf.TensorSpec]
    outputs: tuple[str, ...]
    batched: bool
    function: Callable

    @classmethod
    def create(cls, name: str, definition: meta_graph_pb2.SignatureDef, function: Callable):
        def specs(infos):
            return {
                key: tf.TensorSpec(tf.TensorShape(info.tensor_shape), tf.as_dtype(info.dtype))
                for key, info in sorted(infos.items())
            }

        inputs, outputs = specs(definition.inputs), specs(definition.outputs)
        batched = all(
            spec.shape.rank and spec.shape[0] is None
            for spec in [*inputs.values(), *outputs.values()]
        )
        return cls(name, inputs, tuple(outputs), bool(inputs) and batched, function)

    def check_names(self, given: Iterable[str]) -> None:
        wanted = ", ".join(f"`{name}`" for name in self.inputs)
        for name in given:
            if name not in self.inputs:
                raise refusal.invalid(
                    f"signature `{self.name}` has no input `{name[:100]}`, but {wanted}."
                )
        for name in self.inputs:
            if name not in given:
                raise refusal.invalid(f"signature `{self.name}` misses its input `{name}`.")

    def check(self, name: str, dtype: tf.DType, shape: Sequence[int]) -> None:
        """Raises where a tensor cannot be the named input."""
        spec = self.inputs[name]
        if dtype != spec.dtype:
            raise refusal.invalid(f"input `{name}` must be {spec.dtype.name}, got {dtype.name}.")
        wanted = spec.shape
        fits = wanted.rank is None or (
            len(shape) == wanted.rank
            and all(want in (None, got) for want, got in zip(wanted, shape, strict=True))
        )
        if not fits or any(size < 0 for size in shape):
            raise refusal.invalid(
                f"input `{name}` must have the shape {_shown(wanted)}, got {_shown(shape)}."
            )

    def rows(self, inputs: Arrays) -> int:
        """The batch size that all inputs share."""
        if not self.batched:
            return 1
        sizes = {name: len(array) for name, array in inputs.items()}
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"`{name}` {size}" for name, size in sizes.items())
            raise refusal.invalid(f"inputs must have equally many rows, got {listed}.")
        rows = next(iter(sizes.values()))
        if not rows:
            raise refusal.invalid(f"input `{next(iter(sizes))}` has no rows.")
        return rows

    def choose(self, output_filter: Sequence[str]) -> Sequence[str]:
        """The outputs that a request asks for: all, where it names none."""
        for name in output_filter:
            if name not in self.outputs:
                raise refusal.invalid(
                    f"output tensor alias not found in signature: `{name[:100]}`; it gives "
                    + ", ".join(f"`{each}`" for each in self.outputs)
                )
        if len(set(output_filter)) < len(output_filter):
            raise refusal.invalid("output_filter names an output twice.")
        return output_filter or self.outputs

    def __call__(self, inputs: Arrays) -> Arrays:
        tensors = {
            name: tf.constant(inputs[name], spec.dtype) for name, spec in self.inputs.items()
        }
        return {name: output.numpy() for name, output in self.function(**tensors).items()}


def _shown(shape: Iterable[int | None]) -> str:
    if isinstance(shape, tf.TensorShape) and shape.rank is None:
        return "of any rank"
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"

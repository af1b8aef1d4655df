"""Reads the tensors of a safetensors file: 8 bytes of length, a JSON header, raw values."""

import json
import math

import numpy as np

from mrnn_tf import files
from mrnn_tf.errors import UserError

_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4",
    "I16": "<i2", "I8": "<i1", "U8": "<u1", "BOOL": "<?",
}  # fmt: skip


def read_safetensors(path: str) -> dict[str, np.ndarray]:
    """The tensors of a file by name; those of 16-bit brain floats become float32."""
    content = files.read_weights(path)
    try:
        end = 8 + int.from_bytes(content[:8], "little")
        if end > len(content):
            raise ValueError(f"its header of {end - 8} bytes goes beyond its end")
        entries = json.loads(content[8:end])
        if not isinstance(entries, dict):
            raise ValueError("its header is no JSON object")
        entries.pop("__metadata__", None)
        values = memoryview(content)[end:]
        return {name: _tensor(name, entry, values) for name, entry in entries.items()}
    except (ArithmeticError, RecursionError, ValueError) as error:
        raise UserError(f"{path} is no safetensors file: {error}.") from error


def _tensor(name: str, entry: object, values: memoryview) -> np.ndarray:
    match entry:
        case {"dtype": str(kind), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if (
            kind in _TYPES and all(type(size) is int and size >= 0 for size in shape)
        ):
            dtype = np.dtype(_TYPES[kind])
        case _:
            raise ValueError(f"the entry of {name!r} has no known dtype, shape and data_offsets")
    if not 0 <= begin <= end <= len(values) or end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"the values of {name!r} do not lie where the header says")
    array = np.frombuffer(values[begin:end], dtype).reshape(shape)
    return (array.astype("<u4") << 16).view("<f4") if kind == "BF16" else array

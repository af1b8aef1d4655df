"""Tensors as JSON: TF Serving's row format (`instances`) and column format (`inputs`)."""

import base64
from typing import Any

import numpy as np
import tensorflow as tf

from serving import tensors
from serving.served_version import Arrays, Refused, ServedSignature, listed

ROWS, COLUMNS = "instances", "inputs"
_DEEPEST = 32  # dimensions that NumPy iterates over
_ANSWERS = {ROWS: "predictions", COLUMNS: "outputs"}


def layout(body: dict) -> str:
    """Which of the two formats a request is in."""
    given = [key for key in (ROWS, COLUMNS) if key in body]
    if len(given) != 1:
        raise Refused(f"a request holds either '{ROWS}' or '{COLUMNS}'.")
    return given[0]


def read(signature: ServedSignature, body: dict) -> Arrays:
    """The inputs of a signature; raises `Refused` where they are not what it wants."""
    columns = body[COLUMNS] if COLUMNS in body else _columns(signature, body[ROWS])
    if not _is_object(columns):
        if len(signature.inputs) != 1:
            names = listed(signature.inputs)
            raise Refused(f"signature `{signature.name}` needs its inputs by name: {names}.")
        columns = {next(iter(signature.inputs)): columns}
    return signature.read(columns, _array)


def write(outputs: Arrays, request_layout: str) -> dict:
    """The answer in the format of its request; a single output goes without its name."""
    lists = {name: _list(name, array) for name, array in outputs.items()}
    if len(lists) == 1:
        [answer] = lists.values()
    elif request_layout == COLUMNS:
        answer = lists
    else:
        sizes = {array.shape[:1] for array in outputs.values()}
        if len(sizes) != 1 or () in sizes:
            raise Refused(f"the outputs have no common rows: ask with '{COLUMNS}'.")
        answer = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    return {_ANSWERS[request_layout]: answer}


def _columns(signature: ServedSignature, rows: Any) -> Any:
    if not isinstance(rows, list) or not rows:
        raise Refused(f"'{ROWS}' must be a list with at least one element.")
    named = sum(map(_is_object, rows))
    if not named:
        return rows
    if named < len(rows):
        raise Refused(f"'{ROWS}' must be all objects, or all values.")
    for row in rows:
        signature.check_names(row)
    return {name: [row[name] for row in rows] for name in signature.inputs}


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and not _is_base64(value)


def _is_base64(value: Any) -> bool:
    return isinstance(value, dict) and list(value) == ["b64"] and isinstance(value["b64"], str)


def _array(name: str, spec: tf.TensorSpec, value: Any) -> np.ndarray:
    leaves = np.array(value, np.object_)
    if leaves.ndim > _DEEPEST:
        raise Refused(f"input `{name}` has lists in more than {_DEEPEST} lists.")
    kinds = set(map(type, leaves.flat))
    if list in kinds:
        raise Refused(f"input `{name}` is not regular: its lists differ in length or depth.")
    if spec.dtype == tf.string:
        return _strings(name, leaves)
    if spec.shape.rank is not None and leaves.ndim > spec.shape.rank:
        kinds = {list}
    dtype = spec.dtype
    if others := kinds - ({bool} if dtype.is_bool else {int} if dtype.is_integer else {int, float}):
        types = ", ".join(sorted(kind.__name__ for kind in others))
        raise Refused(f"input `{name}` must be {dtype.name}, got JSON's {types}.")
    try:
        with np.errstate(over="raise"):
            wide = leaves.astype(np.float64) if dtype.is_floating else leaves
            return wide.astype(dtype.as_numpy_dtype)
    except (OverflowError, FloatingPointError):
        raise Refused(f"input `{name}` has a value beyond {dtype.name}.") from None


def _strings(name: str, leaves: np.ndarray) -> np.ndarray:
    def encoded(leaf: Any) -> bytes:
        return base64.b64decode(leaf["b64"], validate=True) if _is_base64(leaf) else leaf.encode()

    try:
        return tensors.each(encoded, leaves)
    except AttributeError:
        wanted = "must be strings, or objects {'b64': ...}"
    except UnicodeEncodeError:
        wanted = "has a string that is not Unicode"
    except ValueError:
        wanted = "has a value that is not base64"
    raise Refused(f"input `{name}` {wanted}.")


def _list(name: str, array: np.ndarray) -> Any:
    if array.dtype == np.object_ and name.endswith("_bytes"):
        return tensors.each(lambda value: {"b64": base64.b64encode(value).decode()}, array).tolist()
    if array.dtype in (np.float16, np.float32):
        # By way of text, or 0.2 would become 0.20000000298023224.
        array = array.astype("U").astype(np.float64)
    return tensors.to_python(array)

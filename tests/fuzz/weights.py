"""Files of weights, and features or photos that a user gives."""

import functools
import json
import pickle
from pathlib import Path

import keras
import numpy as np

from fuzz.datasets import Folder, npy, npz, zipped
from fuzz.engine import Case, Parser
from mrnn_tf.vision import parameters, torch_file

_TENSOR = (
    b"ctorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\nFloatStorage\nU\x01%dU\x03cpuK\x06Nt"
    b"QK\x00K\x02K\x03\x86K\x03K\x01\x86\x89ccollections\nOrderedDict\n)RtR"
)


def torch_state() -> bytes:
    """A state dictionary of two tensors, as PyTorch wrote them before 1.6."""
    head = [pickle.dumps(part, protocol=2) for part in (0x1950A86A20F9469CFC6C, 1001, {"a": 1})]
    state = b"ccollections\nOrderedDict\nq\x00)Rq\x01("
    state += b"X\x01\0\0\0v" + _TENSOR % 0 + b"X\x01\0\0\0wq\x02" + _TENSOR % 1 + b"u."
    values = (6).to_bytes(8, "little") + np.arange(6, dtype="<f4").tobytes()
    return b"".join([*head, b"\x80\x02", state, pickle.dumps(["0", "1"], protocol=2), values * 2])


def _torch(path: Path) -> Parser:
    folder = Folder(path, {"w.pth": torch_state()})

    def parse(case: Case) -> None:
        tensors = torch_file.read_torch(folder.place(case))
        for array in tensors.values():
            np.array(array).sum()

    return Parser([("w.pth", torch_state())], parse, share=2)


def _model() -> keras.Model:
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(2, name="b")(keras.layers.Dense(3, name="a")(inputs))
    return keras.Model(inputs, outputs, name="small")


def _weights(ending: str, path: Path) -> Parser:
    """A file of weights for a model of two layers."""
    model = _model()
    arrays = {"a/weights": np.ones((4, 3), np.float32), "a/biases": np.ones(3, np.float32)}
    arrays |= {"b/weights": np.ones((3, 2), np.float32), "b/biases": np.ones(2, np.float32)}
    seeds = _SEEDS[ending](model, arrays, path)
    members = {name: npy(array) for name, array in arrays.items()}
    folder = Folder(path, {seeds[0][0]: seeds[0][1]})

    def parse(case: Case) -> None:
        if case.name == "member.npy":
            case = Case("w.npz", zipped(**members | {"a/weights": case.content}))
        if case.name == "header.json":
            case = Case("w.safetensors", _safetensors(case.content))
        parameters.load(model, folder.place(case))

    return Parser(seeds, parse, share=1 if ending == "safetensors" else 0.1)


_HEADER = {
    f"{layer}/{kind}": {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    for layer, kind, shape, begin, end in (
        ("a", "kernel", [4, 3], 0, 48), ("a", "bias", [3], 48, 60),
        ("b", "weights", [3, 2], 60, 84), ("b", "biases", [2], 84, 92),
    )
}  # fmt: skip


def _safetensors(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + np.ones(23, "<f4").tobytes()


def _saved(name: str, model: keras.Model, _, path: Path) -> list[tuple[str, bytes]]:
    model.save_weights(path / name)
    return [(name, (path / name).read_bytes())]


_SEEDS = {
    "npy": lambda model, arrays, path: [("w.npy", npy(np.ones(23, np.float32)))],
    "npz": lambda model, arrays, path: [
        ("w.npz", npz(**arrays)), ("member.npy", npy(arrays["a/weights"]))
    ],
    "safetensors": lambda model, arrays, path: [
        ("w.safetensors", _safetensors(json.dumps(_HEADER).encode())),
        ("header.json", json.dumps(_HEADER).encode()),
    ],
    "weights.h5": functools.partial(_saved, "w.weights.h5"),
}  # fmt: skip
PARSERS = {"weights .pth": _torch}
PARSERS |= {f"weights .{ending}": functools.partial(_weights, ending) for ending in _SEEDS}

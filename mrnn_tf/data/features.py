"""Precomputed features: a memory-mapped array with one row per named image."""

import hashlib
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from mrnn_tf import arrays, files
from mrnn_tf.errors import UserError

_ROWS_AT_ONCE = 4096


class FeatureTable:
    """Rows of features [N, D] by image name; line i of the text file `names` names row i.

    An `.npz` holds the features as its only array, or as `features`, and may hold the `names` too.
    """

    def __init__(self, path: str, names: str | None = None):
        self.path = path
        self.array, own_names = _open(path)
        if self.array.ndim != 2 or not np.issubdtype(self.array.dtype, np.floating):
            raise UserError(
                f"`features` {path} must be a float array of shape [images, size]; "
                f"received {self.array.dtype} {list(self.array.shape)}."
            )
        if names is None and own_names is None:
            raise UserError(f"`features` {path} needs `names`, a file with the image of each row.")
        listed = _read_names(names) if names is not None else [str(n) for n in own_names]
        try:
            "\n".join(listed).encode()
        except UnicodeEncodeError:
            raise UserError(f"`names` {names or path} has a name that is not Unicode.") from None
        if len(listed) != len(self.array):
            own = f"`features` {path} has {len(self.array)} rows"
            raise UserError(f"{own}, but `names` {names or path} has {len(listed)} names.")
        self._rows = {name: row for row, name in enumerate(listed)}
        if len(self._rows) != len(listed):
            twice = next(n for i, n in enumerate(listed) if self._rows[n] != i)
            raise UserError(f"`names` {names or path} holds {twice} twice.")

    @property
    def size(self) -> int:
        return self.array.shape[1]

    def row(self, image_id: str) -> int | None:
        return self._rows.get(image_id)

    def fingerprint(self) -> str:
        """A digest of names and values."""
        digest = hashlib.sha256("\n".join(self._rows).encode())
        for _, rows in self._parts():
            digest.update(np.ascontiguousarray(rows))
        return digest.hexdigest()

    def check_finite(self) -> None:
        """Raises for the first row that holds NaN or infinity."""
        for start, rows in self._parts():
            with np.errstate(over="ignore"):  # what is stored has 32 bits
                bad = ~np.isfinite(rows.astype(np.float32)).all(axis=1)
            if bad.any():
                row = start + int(bad.argmax())
                where = f"row {row} ({list(self._rows)[row]})"
                raise UserError(f"`features` {self.path} holds NaN or infinity in {where}.")

    def _parts(self) -> Iterator[tuple[int, np.ndarray]]:
        for start in range(0, len(self.array), _ROWS_AT_ONCE):
            yield start, self.array[start : start + _ROWS_AT_ONCE]


def _open(path: str) -> tuple[np.ndarray, np.ndarray | None]:
    if not tf.io.gfile.exists(path):
        raise FileNotFoundError(f"`features` {path} does not exist.")
    if not path.endswith(".npz"):
        return arrays.read(path, f"`features` {path}"), None
    held = arrays.read_archive(path, f"`features` {path}")
    names = held.pop("names", None)
    if "features" not in held and len(held) != 1:
        received = ", ".join(held) or "none"
        raise UserError(
            f"`features` {path} must hold one array or `features`; it holds {received}."
        )
    return held.get("features", next(iter(held.values()))), names


def _read_names(path: str) -> list[str]:
    if not tf.io.gfile.exists(path):
        raise FileNotFoundError(f"`names` {path} does not exist.")
    return [line.strip() for line in files.read_text(path).splitlines() if line.strip()]

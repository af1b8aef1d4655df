"""Precomputed features: memory-mapped arrays with one row per named image."""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from mrnn_tf import arrays, files
from mrnn_tf.errors import UserError

_ROWS_AT_ONCE = 4096


class FeatureTable:
    """Rows of features by image name; line i of the text file `names` names row i of every file.

    The features [N, D] of several files are joined: their sizes are the `parts` of D. An `.npz`
    holds the features as its only array, or as `features`, and may hold the `names` too.
    """

    def __init__(self, paths: Sequence[str], names: str | None = None):
        self._paths, self._arrays, self._rows = paths, [], {}
        for path in paths:
            array, own_names = _open(path)
            if array.ndim != 2 or not np.issubdtype(array.dtype, np.floating):
                raise UserError(
                    f"`features` {path} must be a float array of shape [images, size]; "
                    f"received {array.dtype} {list(array.shape)}."
                )
            rows = _rows(path, names, own_names)
            if len(rows) != len(array):
                own = f"`features` {path} has {len(array)} rows"
                raise UserError(f"{own}, but `names` {names or path} has {len(rows)} names.")
            if self._arrays and rows != self._rows:
                raise UserError(f"`features` {paths[0]} and {path} must name the same rows.")
            self._arrays.append(array)
            self._rows = rows

    @property
    def parts(self) -> list[int]:
        return [array.shape[1] for array in self._arrays]

    def row(self, image_id: str) -> int | None:
        return self._rows.get(image_id)

    def features(self, rows: Sequence[int]) -> np.ndarray:
        """The features float32 [B, D] of some rows, those of all files side by side."""
        return np.concatenate([array[rows] for array in self._arrays], axis=1, dtype=np.float32)

    def fingerprint(self) -> str:
        """A digest of names and values."""
        digest = hashlib.sha256("\n".join(self._rows).encode())
        for _, _, rows in self._blocks():
            digest.update(np.ascontiguousarray(rows))
        return digest.hexdigest()

    def check_finite(self) -> None:
        """Raises for the first row that holds NaN or infinity."""
        for path, start, rows in self._blocks():
            with np.errstate(over="ignore"):  # what is stored has 32 bits
                bad = ~np.isfinite(rows.astype(np.float32)).all(axis=1)
            if bad.any():
                row = start + int(bad.argmax())
                where = f"row {row} ({list(self._rows)[row]})"
                raise UserError(f"`features` {path} holds NaN or infinity in {where}.")

    def _blocks(self) -> Iterator[tuple[str, int, np.ndarray]]:
        for path, array in zip(self._paths, self._arrays, strict=True):
            for start in range(0, len(array), _ROWS_AT_ONCE):
                yield path, start, array[start : start + _ROWS_AT_ONCE]


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


def _rows(path: str, names: str | None, own_names: np.ndarray | None) -> dict[str, int]:
    """The rows of a file of features by the names of their images."""
    if names is None and own_names is None:
        raise UserError(f"`features` {path} needs `names`, a file with the image of each row.")
    listed = _read_names(names) if names is not None else [str(name) for name in own_names]
    try:
        "\n".join(listed).encode()
    except UnicodeEncodeError:
        raise UserError(f"`names` {names or path} has a name that is not Unicode.") from None
    rows = {name: row for row, name in enumerate(listed)}
    if len(rows) != len(listed):
        twice = next(name for row, name in enumerate(listed) if rows[name] != row)
        raise UserError(f"`names` {names or path} holds {twice} twice.")
    return rows


def _read_names(path: str) -> list[str]:
    if not tf.io.gfile.exists(path):
        raise FileNotFoundError(f"`names` {path} does not exist.")
    return [line.strip() for line in files.read_text(path).splitlines() if line.strip()]

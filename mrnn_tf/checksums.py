"""Checksums: whether the files of a directory are what was written.

The marker of a directory, a JSON file that is written last, has the size and the CRC-32 of the
other files under `checksums`, and the CRC-32 of its own content under `checksum`. CRC-32 finds
every flipped bit, and zlib computes it four times as fast as hashlib computes blake2b. It finds
damage, not forgery: who can write the files can write the marker too.
"""

import contextlib
import dataclasses
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from mrnn_tf import files
from mrnn_tf.errors import UserError

_FILES, _OWN = "checksums", "checksum"
_RECORD = re.compile(r"[0-9]{1,19} [0-9a-f]{8}")
_BYTES_AT_ONCE = 1 << 24
_DAMAGE = (tf.errors.DataLossError, tf.errors.InternalError, tf.errors.OutOfRangeError)
_STATS_AT_ONCE = 16  # on an object store every one is a request


@dataclasses.dataclass(frozen=True)
class Checksums:
    """What a marker says of files in a folder; that of an earlier release says nothing of them."""

    folder: str
    remedy: str  # how to make them again, as the second half of a sentence
    recorded: Mapping[str, str] = dataclasses.field(default_factory=dict)  # "<bytes> <crc32>"

    def check(self, *names: str) -> None:
        """Refuses damaged files, sizes first; by default looks at all."""
        self.check_sizes(*names)
        for name in self._known(names):
            if _of_file(self._path(name)) != self.recorded[name]:
                self._refuse(name)

    def check_sizes(self, *names: str) -> None:
        """Refuses missing, cut and longer files; by default looks at all."""
        known = self._known(names)
        with ThreadPoolExecutor(_STATS_AT_ONCE) as pool:
            sizes = pool.map(_size, map(self._path, known))
            for name, size in zip(known, sizes, strict=True):
                wanted = int(self.recorded[name].split()[0])
                if size is None:
                    raise FileNotFoundError(f"{self._path(name)} is missing: {self.remedy}.")
                if size != wanted:
                    raise UserError(
                        f"{self._path(name)} is damaged: it has {size:,} bytes and had {wanted:,} "
                        f"when it was written; {self.remedy}."
                    )

    def read(self, name: str) -> bytes:
        """The content of a file, which is refused where it is damaged."""
        with tf.io.gfile.GFile(self._path(name), "rb") as file:
            content = file.read()
        if name in self.recorded and self.recorded[name] != _of_parts([content]):
            self._refuse(name)
        return content

    def _known(self, names: Iterable[str]) -> list[str]:
        return [name for name in names or self.recorded if name in self.recorded]

    def _path(self, name: str) -> str:
        return tf.io.gfile.join(self.folder, name)

    def _refuse(self, name: str) -> None:
        raise UserError(
            f"{self._path(name)} is damaged: it is not what was written, by its checksum; "
            f"{self.remedy}."
        )


def write(
    path: str, content: Mapping[str, Any], folder: str = "", names: Iterable[str] = ()
) -> None:
    """Writes a marker with checksums of the named files in a folder, and of itself."""
    recorded = {name: _of_file(tf.io.gfile.join(folder, name)) for name in sorted(names)}
    content = {**content, _FILES: recorded}
    files.write_json(path, {**content, _OWN: _of_json(content)})


def read(path: str, wanted: str, folder: str, remedy: str) -> tuple[dict[str, Any], Checksums]:
    """The content of a marker, refused where it is damaged, and what it says of the files.

    `wanted` is for an error about something else than a marker, `remedy` for one about damage.
    """
    content = files.read_json(path, f"{wanted}; {remedy}")
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object: {wanted}; {remedy}.")
    if _FILES not in content and _OWN not in content:
        return content, Checksums(folder, remedy)
    own = content.pop(_OWN, None)
    if own != _of_json(content):
        raise UserError(f"{path} is damaged or was edited: its checksum is another one; {remedy}.")
    recorded = content.pop(_FILES, None)
    if not isinstance(recorded, dict) or not all(
        map(_RECORD.fullmatch, map(str, recorded.values()))
    ):
        raise UserError(
            f"{path} has no `{_FILES}` of files, each as its size and CRC-32; {remedy}."
        )
    return content, Checksums(folder, remedy, recorded)


def check_beside(path: str, marker: str, remedy: str) -> None:
    """Refuses a file that is not what the marker beside it says; there need be none."""
    folder, name = os.path.split(path)
    if tf.io.gfile.exists(tf.io.gfile.join(folder, marker)):
        _, sums = read(tf.io.gfile.join(folder, marker), "a marker is wanted", folder, remedy)
        sums.check(name)


@contextlib.contextmanager
def naming_damage(path: str, remedy: str) -> Iterator[None]:
    """Where TensorFlow finds a checkpoint damaged, by checksums of its own, names it."""
    try:
        yield
    except (tf.errors.OpError, IndexError) as error:
        # Of what its reader of checkpoints finds, TensorFlow does not always say the kind.
        if not isinstance(error, (*_DAMAGE, IndexError)) and type(error) is not tf.errors.OpError:
            raise
        message = getattr(error, "message", str(error))
        reason = message.partition(" [Op:")[0].rpartition("}} ")[2]
        raise UserError(f"{path} is damaged ({reason}): {remedy}.") from error


def _of_json(content: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


def _of_file(path: str) -> str:
    with tf.io.gfile.GFile(path, "rb") as file:
        return _of_parts(iter(lambda: file.read(_BYTES_AT_ONCE), b""))


def _of_parts(parts: Iterable[bytes]) -> str:
    size = checksum = 0
    for part in parts:
        size, checksum = size + len(part), zlib.crc32(part, checksum)
    return f"{size} {checksum:08x}"


def _size(path: str) -> int | None:
    try:
        return tf.io.gfile.stat(path).length
    except tf.errors.NotFoundError:
        return None

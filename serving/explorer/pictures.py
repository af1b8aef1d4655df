"""Pictures that were sent, and photographs of the folder: features and previews, in memory only."""

import collections
import dataclasses
import hashlib
import os
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

import numpy as np
from starlette.exceptions import HTTPException

from mrnn_tf import photos
from mrnn_tf.captioner import UNDECODABLE
from mrnn_tf.errors import UserError
from serving.explorer.safety import confined

SIDES = {"small": 480, "large": 1280}  # of previews, in pixels
_SENT, _PHOTO = "sent:", "photo:"
_KEPT_PICTURES, _KEPT_FEATURES, _KEPT_PREVIEWS = 64, 1024, 512
_DECODED_AT_ONCE = 2  # a picture may take 200 MB while it is decoded


def photo_name(path: bytes) -> str:
    """The name by which the page asks for a photograph of the folder."""
    return _PHOTO + quote_from_bytes(path)


def is_sent(name: str) -> bool:
    """Whether a name is that of a picture that was sent, whose content never changes."""
    return name.startswith(_SENT)


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture that was sent: what it is shown by, and asked about."""

    features: np.ndarray
    previews: dict[str, bytes]


class Pictures:
    """The pictures that the page can ask about, by name.

    `encode` turns contents into features [B, D]; `folder` gives the folder of photographs, or
    `None`. The last pictures that were sent are kept until `forget`.
    """

    def __init__(
        self, encode: Callable[[list[bytes]], np.ndarray], folder: Callable[[], str | None]
    ):
        self._encode, self._folder = encode, folder
        self._sent = Recent(_KEPT_PICTURES)
        self._features, self._previews = Recent(_KEPT_FEATURES), Recent(_KEPT_PREVIEWS)
        self._decoding = threading.Semaphore(_DECODED_AT_ONCE)

    def add(self, content: bytes) -> str:
        """Keeps a picture; returns its name."""
        name = _SENT + hashlib.blake2b(content, digest_size=16).hexdigest()
        if self._sent.get(name) is None:
            previews = self._make_previews(content, "the picture", SIDES)
            self._sent.put(name, Picture(self._encoded(content, "the picture"), previews))
        return name

    def forget(self) -> None:
        """Forgets what a model made of pictures, and the pictures that were sent."""
        self._sent.clear()
        self._features.clear()

    def features(self, name: str) -> np.ndarray:
        """The features [D] of a picture."""
        if is_sent(name):
            return self._find_sent(name).features
        file, key = self._file(name)
        if (features := self._features.get(key)) is None:
            features = self._encoded(photos.read(Path(file)), os.path.basename(file))
            self._features.put(key, features)
        return features

    def preview(self, name: str, size: str) -> bytes:
        """A JPEG of a picture."""
        if is_sent(name):
            return self._find_sent(name).previews[size]
        file, key = self._file(name)
        if (made := self._previews.get((*key, size))) is None:
            content, source = photos.read(Path(file)), os.path.basename(file)
            made = self._make_previews(content, source, {size: SIDES[size]})[size]
            self._previews.put((*key, size), made)
        return made

    def _find_sent(self, name: str) -> Picture:
        if (picture := self._sent.get(name)) is None:
            raise HTTPException(410, "this picture is not kept any more: choose it again.")
        return picture

    def _file(self, name: str) -> tuple[str, tuple]:
        """The file of a photograph, and what changes when it does."""
        folder = self._folder()
        if folder is None or not name.startswith(_PHOTO):
            raise HTTPException(404, "there is no such picture.")
        file = confined(folder, unquote_to_bytes(name.removeprefix(_PHOTO)))
        status = os.stat(file)
        return file, (file, status.st_mtime_ns, status.st_size)

    def _make_previews(self, content: bytes, source: str, sides: dict[str, int]) -> dict:
        with self._decoding:
            return {size: photos.preview(content, source, side) for size, side in sides.items()}

    def _encoded(self, content: bytes, source: str) -> np.ndarray:
        with self._decoding:
            content = photos.decodable(content, source, check=False)
            [features] = self._encode([content])  # which decodes it too
        if not features.any():
            raise UserError(f"{source}: {UNDECODABLE}")
        return features


class Recent:
    """Values by key; the one that was used longest ago gives way to a new one."""

    def __init__(self, most: int):
        self._most, self._values = most, collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Any:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: Any) -> None:
        with self._lock:
            self._values[key] = value
            if len(self._values) > self._most:
                self._values.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._values.clear()

"""Brings a catalogue up to date with a folder: which files changed, and the vectors of these.

Batches of photographs are read, decoded and encoded by a few threads, so that one batch is decoded
while another is encoded. Blocks of batches are committed in the order of the paths: a process that
is stopped and started again makes the same batches, and so the same vectors, bit for bit.
"""

import collections
import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import logging

from mrnn_tf import photos
from mrnn_tf.captioner import AT_ONCE, UNDECODABLE
from mrnn_tf.errors import UserError
from mrnn_tf.photo_index.catalogue import Catalogue, Photo
from mrnn_tf.progress import Progress

BATCHES_OF_BLOCK = 4  # that are committed together
_THREADS = max(2, (os.cpu_count() or 2) // 2)  # one batch is decoded while another is encoded
_OWNS_A_VECTOR = 0  # the row of a photograph before the catalogue gives it one

Encode = Callable[[list[bytes]], np.ndarray]  # contents to features [B, D], zeros if undecodable
Project = Callable[[np.ndarray], np.ndarray]  # features [B, D] to vectors [B, M]
# Called with (done, total) at the start and after every batch; returning False stops the update.
Watch = Callable[[int, int], bool]


@dataclasses.dataclass(frozen=True)
class Changes:
    """How many photographs an update found new, changed, moved and removed.

    `unreadable` are all of the folder that could not be read, now or earlier.
    """

    added: int = 0
    changed: int = 0
    moved: int = 0
    removed: int = 0
    unreadable: int = 0


class Listing(NamedTuple):
    """The photographs of a folder: size and time by path, and the paths that cannot be listed."""

    files: dict[bytes, tuple[int, int]]
    failed: list[bytes]

    def is_gone(self, path: bytes) -> bool:
        """Whether a photograph is certainly not there any more."""
        is_hidden = any(top in (path, b".") or path.startswith(top + b"/") for top in self.failed)
        return path not in self.files and not is_hidden


def update(
    catalogue: Catalogue,
    folder: str,
    encode: Encode,
    project: Project,
    watch: Watch = lambda done, total: True,
) -> Changes:
    """Brings a catalogue up to date; unchanged files are not opened."""
    known = {photo.path: photo for photo in catalogue.photos()}
    listing = list_photos(folder)
    listed = listing.files
    if known and not listed:  # a drive that is not mounted looks like this
        raise UserError(f"{folder} is empty now: the index stays as it was.")
    gone = {path: photo for path, photo in known.items() if listing.is_gone(path)}
    pending = [
        path
        for path, times in sorted(listed.items())
        if path not in known or times != (known[path].size, known[path].mtime_ns)
    ]
    if not (gone or pending):
        return Changes(unreadable=sum(photo.row is None for photo in known.values()))
    same = dict(_same_content(folder, pending, listed, known, gone))
    catalogue.change(gone, same.values())
    pending = [path for path in pending if path not in same]
    done = _encode(catalogue, folder, pending, listed, encode, project, watch)
    pending = pending[:done]
    catalogue.compact()
    moved = sum(path not in known for path in same)
    added = sum(path not in known for path in pending)
    unreadable = sum(photo.row is None for photo in catalogue.photos())
    return Changes(added, len(pending) - added, moved, len(gone) - moved, unreadable)


def list_photos(folder: str) -> Listing:
    """The files in a folder and below that may be photographs.

    Hidden files and folders are left out; links to folders are not followed.
    """
    listed, failed, top = {}, [], os.fsencode(folder)

    def fail(error: OSError) -> None:
        logging.warning("%s cannot be listed: %s", error.filename, error.strerror)
        failed.append(os.path.relpath(os.fsencode(error.filename), top))

    for directory, folders, names in os.walk(top, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith(b"."))
        for name in names:
            is_photo = os.fsdecode(name).lower().endswith(photos.SUFFIXES)
            if is_photo and not name.startswith(b"."):
                path = os.path.join(directory, name)
                try:
                    status = os.stat(path)
                except FileNotFoundError:  # a link to nothing, or it has gone meanwhile
                    continue
                except OSError as error:
                    fail(error)
                    continue
                listed[os.path.relpath(path, top)] = status.st_size, status.st_mtime_ns
    return Listing(listed, failed)


def _same_content(
    folder: str,
    pending: Iterable[bytes],
    listed: dict[bytes, tuple[int, int]],
    known: dict[bytes, Photo],
    gone: dict[bytes, Photo],
) -> Iterator[tuple[bytes, Photo]]:
    """Photographs whose content is known: they were moved, or only their time has changed."""
    moved = {(photo.size, photo.digest): photo for photo in gone.values() if photo.row is not None}
    sizes = {size for size, _ in moved}
    for path in pending:
        size, mtime_ns = listed[path]
        old = known.get(path)
        may_be_same = old is not None and old.row is not None and old.size == size
        if not may_be_same and (path in known or size not in sizes):
            continue
        try:
            content_digest = digest(photos.read(_local(folder, path)))
        except (OSError, UserError):
            continue
        if may_be_same and old.digest == content_digest:
            yield path, old._replace(mtime_ns=mtime_ns)
        elif path not in known and (photo := moved.pop((size, content_digest), None)):
            yield path, photo._replace(path=path, mtime_ns=mtime_ns)


def _encode(
    catalogue: Catalogue,
    folder: str,
    pending: list[bytes],
    listed: dict[bytes, tuple[int, int]],
    encode: Encode,
    project: Project,
    watch: Watch,
) -> int:
    """Encodes photographs until the watch stops it; returns how many are done."""

    def make(paths: list[bytes]) -> tuple[list[Photo], np.ndarray]:
        return _make_batch(folder, paths, listed, encode, project)

    batches = [pending[first : first + AT_ONCE] for first in range(0, len(pending), AT_ONCE)]
    block: list[tuple[list[Photo], np.ndarray]] = []

    def commit() -> None:
        made, vectors = zip(*block, strict=True)
        catalogue.append([photo for each in made for photo in each], np.concatenate(vectors))
        block.clear()

    done = 0
    if pending and not watch(0, len(pending)):
        return done
    with (
        Progress(total=len(pending), name="photographs", unit=" photographs") as bar,
        contextlib.closing(_ahead(make, batches)) as encoded,
    ):
        for batch in encoded:
            block.append(batch)
            done += len(batch[0])
            if len(block) == BATCHES_OF_BLOCK or done == len(pending):
                commit()
            bar.update(len(batch[0]))
            if not watch(done, len(pending)):
                break
        if block:
            commit()
    return done


def _ahead(function: Callable, items: Iterable) -> Iterator:
    """The results of a function in the order of its items, computed by threads a little ahead."""
    waiting: collections.deque = collections.deque()
    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > _THREADS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _make_batch(
    folder: str,
    paths: list[bytes],
    listed: dict[bytes, tuple[int, int]],
    encode: Encode,
    project: Project,
) -> tuple[list[Photo], np.ndarray]:
    """Photographs with their vectors: those that could be decoded have one, in their order."""
    made, contents = [], []
    for path in paths:
        file = _local(folder, path)
        photo = Photo(path, *listed[path], None, None, None, None)
        try:
            content = photos.read(file)
            digest_, orientation = digest(content), photos.orientation(content)
            photo = photo._replace(digest=digest_, orientation=orientation, row=_OWNS_A_VECTOR)
            contents.append(photos.decodable(content, file, check=False))
        except UserError as error:
            photo = photo._replace(row=None, reason=str(error))
        except OSError as error:
            photo = photo._replace(row=None, reason=f"{file}: {error.strerror or error}")
        made.append(photo)
    features = encode(contents)
    is_decoded = features.any(axis=1)
    decoded = iter(is_decoded)
    for number, photo in enumerate(made):
        if photo.row is not None and not next(decoded):
            reason = f"{_local(folder, photo.path)}: {UNDECODABLE}"
            made[number] = photo._replace(row=None, reason=reason)
    return made, project(features[is_decoded])


def digest(content: bytes) -> bytes:
    """What tells the content of a file from others."""
    return hashlib.blake2b(content, digest_size=16).digest()


def _local(folder: str, path: bytes) -> Path:
    return Path(folder, os.fsdecode(path))

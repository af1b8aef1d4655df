"""What is known of the photographs of a folder: a SQLite database with a file of vectors beside it.

The vectors are rows of float32 in one file. New rows are appended to it and flushed before the
database commits what they belong to. Rows that the database does not count are cut off when the
catalogue is opened for writing: a process that was killed at any moment left nothing else behind.
Rows of removed photographs stay until they are many; then a new file with the others replaces it.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self
from urllib.parse import quote_from_bytes

import numpy as np

from mrnn_tf.errors import UserError

DATABASE_FILE = "photos.sqlite"
FORMAT = "1"
_GENERATION, _ROWS, _SIZE = "generation", "rows", "size"
# Failures that say nothing of the content: another program writes, the disk is full or fails.
_PASSING = (
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM,
)  # fmt: skip
_PRIMARY = 0xFF  # the bits of SQLite's error codes without their details
_TABLES = """
CREATE TABLE about (key TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE photos (
    path BLOB PRIMARY KEY,  -- in the folder, as the file system has it
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    digest BLOB,  -- of the content
    orientation INTEGER,  -- EXIF's, 1 to 8
    row INTEGER,  -- of the vector; none where it could not be read
    reason TEXT  -- why it could not be read
);
"""


class Photo(NamedTuple):
    """A photograph as the catalogue has it; either `row` or `reason` is `None`."""

    path: bytes
    size: int
    mtime_ns: int
    digest: bytes | None
    orientation: int | None
    row: int | None
    reason: str | None


def exists(directory: str) -> bool:
    """Whether there is a catalogue in a directory."""
    return os.path.exists(os.path.join(directory, DATABASE_FILE))


class Catalogue:
    """The catalogue in a directory; `create` makes one."""

    def __init__(self, directory: str, is_writing: bool = False):
        self._directory = directory
        path = os.path.join(directory, DATABASE_FILE)
        # Whoever reads may have to roll back what a killed process left, if it may write.
        mode = "rw" if is_writing or os.access(directory, os.W_OK) else "ro"
        address = f"file:{_quoted(path)}?mode={mode}"
        with self._naming_failure():
            self._database = sqlite3.connect(address, uri=True, isolation_level=None)
            about = dict(self._database.execute("SELECT key, value FROM about"))
        self.about = {key: os.fsdecode(value) for key, value in about.items()}
        if self.about.get("format") != FORMAT:
            raise UserError(
                f"{directory} is an index of another release (format "
                f"{self.about.get('format')}): delete it and make it again."
            )
        if is_writing:
            self._remove_leftovers()

    @classmethod
    def create(cls, directory: str, about: Mapping[str, str], size: int) -> None:
        """Makes an empty catalogue for vectors of a size; it appears whole."""
        os.makedirs(directory, exist_ok=True)
        path = os.path.join(directory, DATABASE_FILE)
        partial = f"{path}.partial"
        with contextlib.suppress(FileNotFoundError):
            os.remove(partial)
        with contextlib.closing(sqlite3.connect(partial)) as database:
            database.executescript(_TABLES)
            facts = {**about, "format": FORMAT, _SIZE: str(size), _ROWS: "0", _GENERATION: "0"}
            rows = [(key, os.fsencode(value)) for key, value in facts.items()]
            database.executemany("INSERT INTO about VALUES (?, ?)", rows)
            database.commit()
        os.rename(partial, path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self._database.close()

    @property
    def size(self) -> int:
        """The size of a vector."""
        return int(self.about[_SIZE])

    def photos(self) -> list[Photo]:
        """All photographs, in the order of their paths."""
        with self._naming_failure():
            rows = self._database.execute("SELECT * FROM photos ORDER BY path")
            return [Photo(*row) for row in rows]

    def read(self) -> tuple[list[Photo], np.ndarray]:
        """The photographs that could be read, in the order of their vectors [N, size]."""
        with self._transaction("DEFERRED"):
            query = "SELECT * FROM photos WHERE row IS NOT NULL ORDER BY row"
            photos = [Photo(*row) for row in self._database.execute(query)]
            vectors = self._open_vectors()
        rows = [photo.row for photo in photos]
        is_all = rows == list(range(len(vectors)))
        return photos, vectors if is_all else vectors[rows]

    def append(self, photos: Sequence[Photo], vectors: np.ndarray) -> None:
        """Adds or replaces photographs; those with `row` 0 or more own the vectors, in order."""
        rows = self._rows()
        with open(self._vectors_path(), "ab") as file:
            file.write(np.ascontiguousarray(vectors, "<f4").tobytes())
            file.flush()
            os.fsync(file.fileno())
        numbers = iter(range(rows, rows + len(vectors)))
        owned = [
            photo if photo.row is None else photo._replace(row=next(numbers)) for photo in photos
        ]
        with self._transaction():
            self._put(owned)
            self._set(_ROWS, rows + len(vectors))

    def change(self, removed: Iterable[bytes], put: Iterable[Photo]) -> None:
        """Removes paths, then adds or replaces photographs whose vectors are there."""
        with self._transaction():
            self._database.executemany(
                "DELETE FROM photos WHERE path = ?", [(path,) for path in removed]
            )
            self._put(put)

    def compact(self) -> None:
        """Replaces the file of vectors where more than half of its rows belong to nobody."""
        photos, vectors = self.read()
        if self._rows() <= 2 * len(photos):
            return
        generation = int(self.about[_GENERATION]) + 1
        with open(self._vectors_path(generation), "wb") as file:
            file.write(np.ascontiguousarray(vectors, "<f4").tobytes())
            file.flush()
            os.fsync(file.fileno())
        with self._transaction():
            self._put(photo._replace(row=row) for row, photo in enumerate(photos))
            self._set(_ROWS, len(photos))
            self._set(_GENERATION, generation)
        self.about[_GENERATION] = str(generation)
        self._remove_leftovers()

    def _put(self, photos: Iterable[Photo]) -> None:
        self._database.executemany(
            "INSERT OR REPLACE INTO photos VALUES (?, ?, ?, ?, ?, ?, ?)", photos
        )

    def _set(self, key: str, value: int) -> None:
        update = "UPDATE about SET value = ? WHERE key = ?"
        self._database.execute(update, (str(value).encode(), key))

    def _get(self, key: str) -> int:
        query = "SELECT value FROM about WHERE key = ?"
        with self._naming_failure():
            return int(self._database.execute(query, (key,)).fetchone()[0])

    def _rows(self) -> int:
        return self._get(_ROWS)

    def _vectors_path(self, generation: int | None = None) -> str:
        number = self.about[_GENERATION] if generation is None else generation
        return os.path.join(self._directory, f"vectors-{number}.f32")

    def _open_vectors(self) -> np.ndarray:
        rows, path = self._rows(), self._vectors_path(self._get(_GENERATION))
        if rows == 0:
            return np.zeros((0, self.size), np.float32)
        if not os.path.exists(path) or os.path.getsize(path) < 4 * self.size * rows:
            raise UserError(f"{path} is damaged: it is too short; delete the index, make it again.")
        return np.memmap(path, "<f4", "r", shape=(rows, self.size))

    def _remove_leftovers(self) -> None:
        """Cuts off rows that were not committed, and removes files of other generations."""
        current = self._vectors_path()
        for name in os.listdir(self._directory):
            path = os.path.join(self._directory, name)
            if name.startswith("vectors-") and path != current:
                os.remove(path)
        with open(current, "ab") as file:
            wanted = 4 * self.size * self._rows()
            if file.tell() < wanted:
                raise UserError(
                    f"{current} is damaged: it is too short; delete the index, make it again."
                )
            file.truncate(wanted)

    @contextlib.contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        with self._naming_failure():
            try:
                self._database.execute(f"BEGIN {kind}")
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:  # SQLite ends it itself where the disk is full
                    self._database.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _naming_failure(self) -> Iterator[None]:
        path = os.path.join(self._directory, DATABASE_FILE)
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & _PRIMARY in _PASSING:
                raise UserError(f"{path} cannot be used now: {error}.") from error
            raise UserError(
                f"{path} cannot be read ({error}): delete the index and make it again."
            ) from error


def _quoted(path: str) -> str:
    """A path for SQLite's URI."""
    return quote_from_bytes(os.fsencode(os.path.abspath(path)))

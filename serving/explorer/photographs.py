"""The photographs of a folder: a thread indexes them, and notices what is new and what is gone."""

import dataclasses
import os
import threading
import time

import tensorflow as tf
from absl import logging

from mrnn_tf.captioner import Captioner
from mrnn_tf.errors import UserError
from mrnn_tf.photo_index.folder import FolderIndex
from mrnn_tf.photo_index.indexing import Changes
from serving.explorer.safety import is_inside
from serving.indexes import index_of

_LOOK_SECONDS = 10.0  # between two looks at the folder
FOUND = 24  # photographs of a search
_WARM = ("a", "a man", "a man in")  # the first searches make what all share


class Photographs:
    """An index of one folder, which a thread keeps up to date.

    `root` is the folder in which a folder may be chosen. `index` is what can be searched now, and
    is replaced while the thread goes on; it is `None` before a folder was chosen.
    """

    def __init__(self, captioner: Captioner, root: str, look_seconds: float = _LOOK_SECONDS):
        self.index: FolderIndex | None = None
        self.root = os.path.realpath(os.path.expanduser(root))
        self._captioner, self._look_seconds = captioner, look_seconds
        self._writer: FolderIndex | None = None
        self._thread: threading.Thread | None = None
        self._beginning = threading.Lock()  # two threads would index into one catalogue
        self._wake, self._is_ended, self._is_stopped = threading.Event(), False, False
        self._done = self._total = self._shown = 0
        self._began, self._is_shown = 0.0, False
        self._changes, self._error, self._is_running = Changes(), "", False

    def choose(self, folder: str) -> None:
        """Begins to index another folder, which must lie in the root."""
        if not folder.strip():
            raise UserError(f"`folder` is empty: name a folder in {self.root}.")
        try:
            os.fsencode(folder)
        except UnicodeEncodeError:
            raise UserError("`folder` has a character that no name of a folder has.") from None
        wanted = os.path.join(self.root, os.path.expanduser(folder))
        if "\0" in folder or not is_inside(wanted, self.root):
            raise UserError(f"The folder must lie in {self.root}.")
        self.begin(wanted)

    def begin(self, folder: str) -> None:
        """Begins to index a folder, or goes on with it."""
        if not os.path.isdir(folder):
            raise UserError(f"There is no folder {folder}.")
        with self._beginning:
            writer = FolderIndex.open(str(index_of(folder)), folder, self._captioner)
            self._end()
            self._writer, self._changes, self._error = writer, Changes(), ""
            self._is_ended, self._is_stopped, self._done, self._total = False, False, 0, 0
            self._show()
            self._thread = threading.Thread(target=self._keep_up, name="photographs", daemon=True)
            self._thread.start()

    @property
    def folder(self) -> str | None:
        return self.index.folder if self.index is not None else None

    def stop(self) -> None:
        """Stops the indexing; what is done stays."""
        self._is_stopped = True

    def go_on(self) -> None:
        """Goes on where it was stopped, or looks at the folder at once."""
        self._is_stopped = False
        self._wake.set()

    def close(self) -> None:
        """Ends the thread, after the batch that it is at."""
        with self._beginning:
            self._end()

    def _end(self) -> None:
        self._is_ended = True
        self._wake.set()
        if self._thread:
            self._thread.join()

    def state(self) -> dict:
        """How far the indexing is, for people."""
        done, total = self._done, self._total
        left = (total - done) * (time.monotonic() - self._began) / done if done else None
        return {
            "folder": self.folder,
            "root": self.root,
            "photographs": len(self.index) if self.index is not None else 0,
            "is_running": self._is_running and total > 0,
            "is_stopped": self._is_stopped,
            "done": done,
            "total": total,
            "seconds_left": left if self._is_running else None,
            "changes": dataclasses.asdict(self._changes),
            "error": self._error,
        }

    def _keep_up(self) -> None:
        while not self._is_ended:
            if not self._is_stopped:
                self._update()
            self._wake.wait(self._look_seconds)
            self._wake.clear()

    def _update(self) -> None:
        self._done = self._total = 0
        self._is_running = True
        try:
            changes = self._writer.update(self._watch)
            if changes != Changes(unreadable=self._changes.unreadable):
                logging.info("The photographs of %s: %s", self._writer.folder, changes)
                self._changes, self._is_shown = changes, False
            if not self._is_shown:
                self._show()
            self._error = ""
        except (UserError, OSError, tf.errors.OpError) as error:
            logging.warning("The photographs of %s: %s", self._writer.folder, error)
            self._error = str(error)
        finally:
            self._is_running = False

    def _watch(self, done: int, total: int) -> bool:
        if done == 0:
            self._began = time.monotonic()
        self._done, self._total = done, total
        if done < total and done >= 2 * max(self._shown, 64):
            self._show()  # what is committed so far
        return not (self._is_stopped or self._is_ended)

    def _show(self) -> None:
        """Lets what is indexed by now be searched."""
        index = FolderIndex(self._writer.path, self._captioner)
        for words in _WARM:
            index.search_prefix(words, FOUND)
        self.index, self._shown, self._is_shown = index, len(index), True

"""How far something is and how long it will take: a bar on a terminal, lines in a log."""

import logging
import sys
from collections.abc import Iterable

from tqdm import tqdm

_SECONDS = 10  # between two lines of a log
_LINE = "{desc}{n_fmt} of {total_fmt}{unit}, {elapsed} passed, {remaining} left{postfix}"


class Progress(tqdm):
    """tqdm's bar; where there is no terminal, a line now and then, and none of what is quick.

    Example:

        for batch in Progress(batches, "captions", unit=" batches"):
            ...
    """

    def __init__(self, iterable: Iterable | None = None, name: str = "", **settings):
        self._is_bar = sys.stderr.isatty()
        if not self._is_bar:
            name = name and f"{name}: "
            settings |= {"bar_format": _LINE, "leave": False, "miniters": 1}
            settings |= {"mininterval": _SECONDS, "delay": _SECONDS}
        super().__init__(iterable, name, **settings)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if self._is_bar:
            super().display(msg, pos)
        elif msg is None:  # otherwise the bar is to be cleared
            logging.info("%s", str(self))  # as it is now: a record may be read later

    def say(self, sentence: str) -> None:
        """A line above the bar, or of the log."""
        if self._is_bar:
            self.write(sentence, file=sys.stderr)
        else:
            logging.info("%s", sentence)

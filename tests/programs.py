"""Runs the project's programs as real processes, forked from one that has imported the libraries.

Importing TensorFlow, Keras and Beam takes many seconds; a fork server pays for it once.
"""

import dataclasses
import multiprocessing
import os
import runpy
import sys
import tempfile
import time
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tensorflow", "tensorflow_text", "keras", "apache_beam", "orbit"])


@dataclasses.dataclass
class Program:
    """A started program."""

    process: multiprocessing.Process
    folder: Path

    def wait(self, timeout: float = 300) -> "Program":
        self.process.join(timeout)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        return self

    @property
    def code(self) -> int:
        return self.process.exitcode

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text()

    @property
    def error(self) -> str:
        """The one sentence of a program that failed."""
        [line] = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert "Traceback" not in self.err
        return line


def start(folder: Path, module: str, *arguments, environment: dict | None = None) -> Program:
    """Starts `python -m module arguments`; its output goes to files in a new folder."""
    logs = folder / f"program-{time.monotonic_ns()}"
    logs.mkdir(parents=True)
    for name in ("out", "err"):
        (logs / name).touch()
    process = _CONTEXT.Process(
        target=_main, args=(str(logs), module, [str(a) for a in arguments], environment or {})
    )
    process.start()
    return Program(process, logs)


def run(folder: Path, module: str, *arguments, environment: dict | None = None) -> Program:
    """Runs a program to its end."""
    return start(folder, module, *arguments, environment=environment).wait()


def _main(logs: str, module: str, arguments: list[str], environment: dict) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{logs}/{name}", os.O_CREAT | os.O_WRONLY), number)
    os.environ.update(environment)
    tempfile.tempdir = None  # the server that forks may have looked it up
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)

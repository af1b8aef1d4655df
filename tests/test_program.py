"""How programs begin: help and mistakes in flags without TensorFlow, names in step with tables."""

import subprocess
import sys
from pathlib import Path

import pytest

from mrnn_tf import config, program
from mrnn_tf.consensus.similarity import SIMILARITIES
from mrnn_tf.data import readers
from mrnn_tf.vision import encoders

ROOT = Path(__file__).parent.parent
PROGRAMS = (
    "trainer.prepare", "trainer.task", "trainer.evaluate", "trainer.rerank",
    "trainer.ensemble", "export.task", "export.index", "mrnn_tf.metrics", "serving.local",
    "serving.client", "serving.explorer",
)  # fmt: skip
# Runs a program as `python -m` does, and then tells which of the heavy packages were imported.
_RUN = """
import atexit, runpy, sys
heavy = {"tensorflow", "keras", "apache_beam", "orbit", "fastapi"}
atexit.register(lambda: print("imported:", *sorted(heavy & sys.modules.keys())))
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def started(*command: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", _RUN, *command], cwd=ROOT, capture_output=True, text=True
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_imports_no_tensorflow(program):
    done = started(program, "--help")
    assert f"python -m {program}" in done.stdout and "--" in done.stdout
    assert done.stdout.endswith("imported:\n")


@pytest.mark.parametrize(
    ("program", "flag"),
    [("export.task", "--beams=5"), ("serving.local", "--port=x"), ("trainer.rerank", "--k=0")],
)
def test_a_wrong_flag_imports_no_tensorflow(program, flag):
    done = started(
        program, flag, *(["--hypotheses=a", "--output=b"] if "rerank" in program else [])
    )
    assert done.returncode == 1 and done.stdout == "imported:\n"
    [sentence] = done.stderr.splitlines()
    assert sentence.startswith("error: ") and flag.split("=")[0].strip("-") in sentence


def test_a_missing_flag_imports_no_tensorflow():
    done = started("export.task", "--job_dir=runs/first")
    assert done.stdout == "imported:\n"
    assert done.stderr == "error: --output is required (--help shows an example).\n"


def test_what_help_lists_is_there():
    assert encoders.NAMES == config.ENCODERS
    assert tuple(sorted(readers.READERS)) == config.DATASETS
    assert {*SIMILARITIES, config.COMBINED} == {*config.BY_NEIGHBOURS}


def test_ctrl_c_is_one_line_and_the_exit_code_of_a_signal():
    code = """
import os, signal, time
from mrnn_tf import program
def work(_):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)
program.run(work)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped by Ctrl-C\n")


def test_a_sentence_shows_no_escapes_of_a_terminal():
    assert program.sentence(OSError("a\x1b[2J.jpg:\n  gone")) == "a\\x1b[2J.jpg: gone"


def test_a_program_imports_keras_without_the_packages_that_it_does_not_use():
    code = """
import sys
from mrnn_tf import program
with program._quick_imports():
    import keras
assert keras.Model and not {"matplotlib", "sklearn"} & sys.modules.keys()
import gc, matplotlib.pyplot, sklearn
assert gc.isenabled()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

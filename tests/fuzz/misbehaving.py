"""A parser that does what no parser may do: the harness must find it all."""

import os
import signal
import time
from pathlib import Path

import numpy as np

from fuzz.engine import MEMORY, Case, Parser
from mrnn_tf.errors import UserError


def _misbehaving(_: Path) -> Parser:
    def parse(case: Case) -> None:
        match case.content:
            case b"refuse":
                raise UserError("no")
            case b"fail":
                raise KeyError("a bug")
            case b"crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case b"hang":
                time.sleep(3600)
            case b"swell":
                np.ones(2 * MEMORY, np.uint8)

    seeds = ("accept", "refuse", "fail", "crash", "hang", "swell")
    return Parser([("a.txt", seed.encode()) for seed in seeds], parse)


PARSERS = {"misbehaving": _misbehaving}

"""Feeds parsers with damaged inputs, in a process of their own that may crash, hang or swell.

An input is a function of the seed of the run, its parser and its number: whatever happens to the
process, the one that did it can be made again.
"""

import collections
import dataclasses
import faulthandler
import importlib
import multiprocessing
import random
import re
import resource
import shutil
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fuzz import mutations
from mrnn_tf.errors import UserError

MODULES = ("fuzz.datasets", "fuzz.descriptions", "fuzz.weights", "fuzz.graphs", "fuzz.wire")
HANGS_AFTER = 60.0  # seconds by the clock, of a process that may have to wait for its turn
SLOW = 5.0  # seconds of CPU for one input
MEMORY = 2 << 30  # bytes that a parser may ask for beyond what it has when it begins
_MOST_DEATHS = 10  # of the process, by one parser


class Case(NamedTuple):
    """One input: the file of a format that is damaged, and its content."""

    name: str
    content: bytes


@dataclasses.dataclass(frozen=True)
class Parser:
    """What reads inputs, and what it may do with one: return, or raise one of `refuses`.

    Attributes:
        seeds: valid files, or parts of them, by name; the ending says how they are damaged.
        parse: takes a `Case`; or several, where `at_once` is more than 1, of which it returns
            whether each was accepted.
        share: of the inputs of a run, relative to the other parsers.
    """

    seeds: Sequence[tuple[str, bytes]]
    parse: Callable[[Any], Any]
    refuses: tuple[type[Exception], ...] = (UserError,)
    at_once: int = 1
    share: float = 1.0


class Defect(NamedTuple):
    """What must not happen: by which input, and the traceback or what became of the process."""

    parser: str
    number: int
    case: Case
    report: str


@dataclasses.dataclass
class Outcome:
    """What a parser did with its inputs."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0  # of CPU
    slowest: float = 0.0


def parsers(modules: Sequence[str] = MODULES) -> dict[str, Callable[[Path], Parser]]:
    """What makes each parser, by its name, from a folder for its files."""
    made = {}
    for module in modules:
        made |= importlib.import_module(module).PARSERS
    return made


def make_case(parser: Parser, name: str, seed: int, number: int) -> Case:
    """The input with a number; the first ones are the seeds themselves."""
    if number < len(parser.seeds):
        return Case(*parser.seeds[number])
    rng = random.Random(seed << 96 | zlib.crc32(name.encode()) << 64 | number)
    return Case(*mutations.mutate(parser.seeds, rng))


def run(
    counts: dict[str, int],
    seed: int,
    say: Callable[[str], None],
    modules: Sequence[str] = MODULES,
    hangs_after: float = HANGS_AFTER,
) -> tuple[dict[str, Outcome], list[Defect]]:
    """Feeds each parser with as many inputs; returns the outcomes by name, and the defects."""
    context = multiprocessing.get_context("spawn")
    outcomes = {name: Outcome() for name in counts}
    alone = dict.fromkeys(counts, 0)  # up to which number inputs come one at a time
    defects, deaths = [], collections.Counter()
    while todo := [
        n for n in counts if outcomes[n].inputs < counts[n] and deaths[n] < _MOST_DEATHS
    ]:
        position = context.Array("q", [-1, 0])  # of the parser in `todo`, and of its next input
        ours, theirs = context.Pipe()
        plan = [(name, outcomes[name], alone[name], counts[name]) for name in todo]
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            given = (plan, seed, folder, position, theirs, modules)
            worker = context.Process(target=_work, args=given)
            worker.start()
            theirs.close()
            fate = _watch(worker, ours, position, outcomes, defects, say, hangs_after)
        if fate is None:
            continue
        if position[0] < 0:
            raise RuntimeError(f"The first parser {fate}.")
        name, number = todo[position[0]], position[1]
        say(f"{name}: input {number} {fate}")
        with tempfile.TemporaryDirectory() as folder:
            parser = parsers(modules)[name](Path(folder))
        outcomes[name].inputs = number
        if parser.at_once > 1 and number >= alone[name]:
            alone[name] = number + parser.at_once
            continue
        outcomes[name].inputs += 1
        deaths[name] += 1
        defects.append(Defect(name, number, make_case(parser, name, seed, number), fate))
    return outcomes, defects


def _watch(
    worker, pipe, position, outcomes: dict, defects: list, say: Callable, hangs_after: float
) -> str | None:
    """Takes what the worker reports until it ends; what became of it, if that is no good end."""
    last, since = None, time.monotonic()
    while True:
        try:
            if pipe.poll(1.0):
                kind, *content = pipe.recv()
                if kind == "defect":
                    defects.append(Defect(*content))
                else:
                    name, outcome, done = content
                    outcomes[name] = outcome
                    if done:
                        say(f"{name}: {outcome.inputs} inputs, {outcome.refused} refused")
                continue
        except EOFError:
            worker.join()
            return f"ended the process with {worker.exitcode}" if worker.exitcode else None
        if (now := tuple(position)) != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > hangs_after + (600 if last[0] < 0 else 0):
            worker.kill()
            worker.join()
            return f"did not end within {hangs_after:g} s"


def _work(plan: list, seed: int, folder: str, position, pipe, modules: Sequence[str]) -> None:
    """In the worker: runs the parsers, each from its first number to the one before its last."""
    faulthandler.enable()
    known = set()
    for place, (name, outcome, alone, end) in enumerate(plan):
        own = Path(folder, name)
        own.mkdir()
        parser = parsers(modules)[name](own)
        position[:] = place, outcome.inputs
        _limit_memory(MEMORY)
        reported = time.monotonic()
        while outcome.inputs < end:
            position[1] = number = outcome.inputs
            count = parser.at_once if number >= alone else 1
            cases = [make_case(parser, name, seed, n) for n in range(number, number + count)]
            for at, report in _try(parser, cases, outcome):
                kind = name, _kind(report)
                if kind not in known:
                    known.add(kind)
                    pipe.send(("defect", name, number + at, cases[at], report))
            if time.monotonic() > reported + 5:
                reported = time.monotonic()
                pipe.send(("outcome", name, outcome, False))
        _limit_memory(None)
        pipe.send(("outcome", name, outcome, True))
        shutil.rmtree(own)
    pipe.close()


def _try(parser: Parser, cases: list[Case], outcome: Outcome) -> list[tuple[int, str]]:
    """Feeds a parser; the numbers of the inputs on which it does what it may not, and reports."""
    began = time.process_time()
    defects = []
    if parser.at_once > 1:
        try:
            accepted = list(parser.parse(cases))
        except Exception:
            if len(cases) > 1:
                alone = [_try(parser, [case], outcome) for case in cases]
                return [(at, report) for at, found in enumerate(alone) for _, report in found]
            accepted = []
            defects.append((0, traceback.format_exc()))
    else:
        accepted = []
        try:
            parser.parse(*cases)
            accepted = [True]
        except parser.refuses:
            accepted = [False]
        except Exception:
            defects.append((0, traceback.format_exc()))
    seconds = time.process_time() - began
    if seconds > SLOW:
        defects.append((0, f"took {seconds:.1f} s of CPU"))
    outcome.inputs += len(cases)
    outcome.accepted += sum(map(bool, accepted))
    outcome.refused += len(accepted) - sum(map(bool, accepted))
    outcome.seconds += seconds
    outcome.slowest = max(outcome.slowest, seconds)
    return defects


def _kind(report: str) -> str:
    """What two reports of one defect have in common: the places of their frames."""
    frames = re.findall(r'File "(.*)", line (\d+)', report)
    return str(frames[-4:]) if frames else report.split(" ")[0]


def _limit_memory(more: int | None) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = resource.RLIM_INFINITY if more is None else pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))

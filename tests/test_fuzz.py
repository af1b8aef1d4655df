"""The harness finds what it must find, and the parsers stand a run of fixed length."""

import os

import pytest
from fuzz import __main__ as program
from fuzz import engine, mutations

INPUTS = int(os.environ.get("FUZZ_INPUTS", "20000"))
SEEDS = [("a.json", b'{"a": [1, "b"], "c": null}'), ("b.pb", b"\n\x03abc\x12\x02\x08\x01")]


def test_inputs_are_functions_of_their_numbers_and_differ():
    parser = engine.Parser(SEEDS, print)
    cases = [engine.make_case(parser, "p", 0, n) for n in range(300)]
    assert cases == [engine.make_case(parser, "p", 0, n) for n in range(300)]
    assert cases[:2] == SEEDS
    assert len(set(cases)) > 250
    assert all(len(case.content) <= mutations.LONGEST for case in cases)
    assert cases[2:] != [engine.make_case(parser, "p", 1, n) for n in range(2, 300)]


def test_errors_crashes_hangs_and_swelling_are_found(tmp_path):
    modules, said = ("fuzz.misbehaving",), []
    outcomes, defects = engine.run({"misbehaving": 6}, 0, said.append, modules, hangs_after=2.0)
    assert outcomes["misbehaving"].inputs == 6
    assert said[:2] == [
        "misbehaving: input 3 ended the process with -11",
        "misbehaving: input 4 did not end within 2 s",
    ]
    fail, crash, hang, swell = sorted(defects, key=lambda defect: defect.number)
    assert "KeyError: 'a bug'" in fail.report and "MemoryError" in swell.report
    assert crash.case.content == b"crash" and hang.case.content == b"hang"
    path = program.write(crash, tmp_path)
    assert path.read_bytes() == b"crash" and path.parent.name == "misbehaving"


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_parser_returns_or_refuses():
    outcomes, defects = engine.run(program.shares(list(engine.parsers()), INPUTS), 0, print)
    print(program.table(outcomes, defects))
    assert not defects, [(defect.parser, defect.case, defect.report) for defect in defects]
    assert all(outcome.accepted for outcome in outcomes.values())
    assert sum(outcome.inputs for outcome in outcomes.values()) >= INPUTS

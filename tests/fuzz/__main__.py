"""Feeds every parser with damaged inputs and prints what each did with them.

    make fuzz INPUTS=1000000
    PYTHONPATH=.:tests python -m fuzz --inputs 20000 --parsers "images,weights .pth"
    PYTHONPATH=.:tests python -m fuzz --replay "build/fuzz/images/123-p.jpeg"

An input that makes a parser do anything but return or refuse it is written to the folder of
findings with a report beside it; then the exit code is 1.
"""

import argparse
import functools
import sys
import tempfile
from pathlib import Path

from fuzz import engine


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--inputs", type=int, default=100_000, help="over all parsers")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--parsers", help="some of them, with commas between; all by default")
    options.add_argument("--findings", type=Path, default=Path("build/fuzz"))
    options.add_argument("--replay", type=Path, help="feeds a parser with one finding again")
    given = options.parse_args()
    if given.replay:
        replay(given.replay)
        return 0
    makers = engine.parsers()
    names = given.parsers.split(",") if given.parsers else list(makers)
    outcomes, defects = engine.run(
        shares(names, given.inputs), given.seed, functools.partial(print, flush=True)
    )
    print(table(outcomes, defects))
    for defect in defects:
        path = write(defect, given.findings)
        print(f"\n{path}\n{defect.report}")
    return 1 if defects else 0


def shares(names: list[str], inputs: int) -> dict[str, int]:
    """How many inputs each parser gets, by its share."""
    parts = {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            parts[name] = engine.parsers()[name](Path(folder)).share
    return {name: -int(-inputs * part // sum(parts.values())) for name, part in parts.items()}


def table(outcomes: dict[str, engine.Outcome], defects: list[engine.Defect]) -> str:
    lines = ["| parser | inputs | read | refused | defects | inputs/s of CPU | slowest, ms |",
             "|---|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    for name, done in outcomes.items():
        found = sum(defect.parser == name for defect in defects)
        rate = done.inputs / max(done.seconds, 1e-3)
        lines.append(
            f"| {name} | {done.inputs:,} | {done.accepted:,} | {done.refused:,} | {found} "
            f"| {rate:,.0f} | {1000 * done.slowest:,.0f} |"
        )
    every = outcomes.values()
    counts = [
        sum(getattr(done, field) for done in every) for field in ("inputs", "accepted", "refused")
    ]
    seconds = sum(done.seconds for done in every)
    cells = [
        *(f"{count:,}" for count in counts),
        str(len(defects)),
        f"{counts[0] / seconds:,.0f}",
        "",
    ]
    return "\n".join([*lines, f"| all | {' | '.join(cells)} |"])


def write(defect: engine.Defect, folder: Path) -> Path:
    path = folder / defect.parser / f"{defect.number}-{defect.case.name.replace('/', '%')}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(defect.case.content)
    path.with_name(path.name + ".report").write_text(defect.report)
    return path


def replay(path: Path) -> None:
    """Feeds the parser that a finding's folder names, in this process."""
    name = path.name.split("-", 1)[1].replace("%", "/")
    with tempfile.TemporaryDirectory() as folder:
        parser = engine.parsers()[path.parent.name](Path(folder))
        case = engine.Case(name, path.read_bytes())
        print(parser.parse([case] if parser.at_once > 1 else case))


if __name__ == "__main__":
    sys.exit(main())

"""Lets atheris choose the inputs of one parser by the code that they reach (pip install atheris).

    PYTHONPATH=.:tests python -m fuzz.guided "weights .pth" -runs=100000

Only Python code guides it. What follows the parser's name goes to libFuzzer. An input is the number
of a seed, which says the file that it stands for, and the content of that file.
"""

import contextlib
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["mrnn_tf", "serving"]):
    from fuzz import engine

    MAKERS = engine.parsers()


def main() -> None:
    program, name, *flags = sys.argv
    with tempfile.TemporaryDirectory() as folder:
        own, corpus = Path(folder, "files"), Path(folder, "corpus")
        own.mkdir()
        corpus.mkdir()
        parser = MAKERS[name](own)
        for number, (_, content) in enumerate(parser.seeds):
            (corpus / str(number)).write_bytes(bytes([number]) + content)

        def test_one(content: bytes) -> None:
            number = content[0] % len(parser.seeds) if content else 0
            case = engine.Case(parser.seeds[number][0], content[1:])
            with contextlib.suppress(parser.refuses):
                parser.parse([case] if parser.at_once > 1 else case)

        limits = ["-timeout=60", f"-max_len={1 << 16}", "-rss_limit_mb=4096"]
        atheris.Setup([program, *limits, *flags, str(corpus)], test_one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()

"""Search while typing: every key's answer from the explorer, against the bare search.

    python benchmarks/explorer.py
    python benchmarks/explorer.py --server 127.0.0.1:8500

Without a server it indexes drawn pictures with the packaged model, in one process; with one, both
sides ask its index by gRPC. Sentences are typed key by key. For every
key the page's question (HTTP, tokenising, search, the score of every word) and the bare search of
the same words are asked in turns; every side's median counts.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import PIL.Image
from absl import app, flags

from serving.explorer import server
from serving.explorer.options import ExplorerOptions

_SERVER = flags.DEFINE_string("server", None, "Server of a model and an index.")
_PHOTOGRAPHS = flags.DEFINE_integer("photographs", 512, "Pictures that are drawn and indexed.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "How often every sentence is typed.")
SENTENCES = ("a dog runs on the beach", "two men in a red car on the street")


def main(_) -> None:
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory())
        os.environ["XDG_DATA_HOME"] = home
        if _SERVER.value:
            options = ExplorerOptions(server=_SERVER.value, port=0)
        else:
            options = ExplorerOptions(photos=_draw(Path(home, "photographs")), port=0)
        explorer = server.create_explorer(options)
        stack.callback(explorer.close)
        if explorer.photographs:
            while explorer.state()["photographs"]["photographs"] < _PHOTOGRAPHS.value:
                time.sleep(0.2)
            explorer.photographs.stop()
        page = stack.enter_context(server.in_thread(explorer, options))
        http = stack.enter_context(httpx.Client(base_url=page))

        def bare(words: str) -> None:
            if explorer.photographs:
                explorer.photographs.index.search(words, 24)
            else:
                explorer.client.search_images([words])

        def ask(typed: str) -> None:
            http.get("/api/search", params={"query": typed}).raise_for_status()

        keys = [sentence[:end] for sentence in SENTENCES for end in range(1, len(sentence) + 1)]
        took: dict[str, list[float]] = {"page": [], "bare": []}
        for number in range(_ROUNDS.value + 1):
            for key in keys:
                for name, function in (("page", ask), ("bare", bare)):
                    seconds = _seconds(function, key)
                    if number:  # the first round makes every graph
                        took[name].append(seconds)
    for name, seconds in took.items():
        p50, p95 = 1e3 * np.quantile(seconds, [0.5, 0.95])
        print(f"{name}: p50 {p50:.1f} ms, p95 {p95:.1f} ms of {len(seconds)} keys")
    ratio = np.median(took["page"]) / np.median(took["bare"])
    print(f"a key's answer takes {ratio:.2f} times the bare search")


def _seconds(function: Callable[[str], None], key: str) -> float:
    began = time.perf_counter()
    function(key)
    return time.perf_counter() - began


def _draw(folder: Path) -> str:
    """Pictures of a few coloured fields."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(_PHOTOGRAPHS.value):
        fields = PIL.Image.fromarray(random.integers(0, 256, (3, 4, 3), np.uint8))
        fields.resize((64, 48)).save(folder / f"{number}.png")
    return str(folder)


if __name__ == "__main__":
    app.run(main)

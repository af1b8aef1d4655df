"""Half an hour of good and hostile clients while versions change.

SOAK_SECONDS=180 python -m pytest -m slow -rP tests/test_soak.py
"""

import base64
import collections
import contextlib
import dataclasses
import itertools
import os
import random
import re
import shutil
import threading
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path

import hostile
import numpy as np
import programs
import pytest
import served
import tiny

SECONDS = float(os.environ.get("SOAK_SECONDS", "1800"))
GOOD, HOSTILE = 14, 17  # clients, beside the one that asks how the server is
WARM_UP = min(60.0, SECONDS / 4)
TIMEOUT = 60  # seconds for one request
MEGABYTES = 100  # of growth since the warm-up
LINES_A_MINUTE = 60  # in the log
FEATURES = np.random.default_rng(0).random((3, 12), np.float32)
PICTURES = [tiny.picture(colour) for colour in range(3)]
GOOD_REQUESTS = {
    "caption": ("mrnn", {"image_bytes": np.array(PICTURES, object)}),
    "encode_image": ("mrnn", {"image_bytes": np.array(PICTURES[:1], object)}),
    "beam_decode": ("plain", {"features": FEATURES, "prefix": [b"", b"a", b"a red"]}),
    "next_word": ("plain", {"features": FEATURES[:1], "prefix": [b"a"]}),
    "sentence_log_prob": ("plain", {"features": FEATURES[:2], "sentences": [b"a dog", b""]}),
}


def resident_megabytes(pid: int) -> float:
    return int(re.search(r"VmRSS:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


@dataclasses.dataclass
class Soak:
    """Clients of one server, and what they have heard."""

    program: programs.Program
    stop: threading.Event = dataclasses.field(default_factory=threading.Event)
    answers: dict = dataclasses.field(default_factory=dict)  # that are right, by signature
    seconds: dict = dataclasses.field(default_factory=lambda: collections.defaultdict(list))
    heard: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    def client(self, role: Callable, *arguments) -> None:
        """Plays a role until the end, over connections of its own."""
        with contextlib.closing(served.Server(self.program, TIMEOUT)) as client:
            role(client, *arguments)

    def ask(self, client: served.Server, signature: str, by_rest: bool) -> dict:
        name, inputs = GOOD_REQUESTS[signature]
        if not by_rest:
            outputs = client.predict(signature, inputs, name=name)
            return {key: array.tolist() for key, array in outputs.items()}
        columns = {key: [as_json(value) for value in list(v)] for key, v in inputs.items()}
        body = {"signature_name": signature, "inputs": columns}
        answer = client.http.post(f"/v1/models/{name}:predict", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["outputs"]

    def good(self, client: served.Server, number: int) -> None:
        """Asks until the end; raises where an answer is missing or wrong."""
        by_rest = number % 3 == 0
        way = "REST" if by_rest else "gRPC"
        for signature in itertools.cycle(GOOD_REQUESTS):
            if self.stop.wait(0.05):
                return
            began = time.monotonic()
            answer = self.ask(client, signature, by_rest)
            self.seconds[way].append(time.monotonic() - began)
            right = self.answers.setdefault((signature, by_rest), answer)
            for key, value in right.items():
                is_text = isinstance(np.ravel(value)[0], str | bytes)
                assert is_text or np.allclose(answer[key], value, rtol=1e-3, atol=1e-3), signature
                assert not is_text or answer[key] == value, signature

    def probe(self, client: served.Server) -> None:
        """Asks how the server and its models are."""
        while not self.stop.wait(0.1):
            began = time.monotonic()
            assert client.healthy()
            assert client.status("plain")
            assert client.http.get("/v1/models/mrnn").status_code == 200
            self.seconds["health"].append(time.monotonic() - began)

    def hostile(self, client: served.Server, number: int) -> None:
        chance = random.Random(number)
        while not self.stop.wait(0.1):
            attack = chance.choice(list(hostile.ATTACKS))
            heard = hostile.attack(client, attack)
            self.heard[attack, heard] += 1


def as_json(value):
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    return value.tolist()


def publish(exported: Path, version: int) -> None:
    """A further copy of the first version; the one before the last goes."""
    partial = exported / f"{version}.partial"
    shutil.copytree(exported / "1", partial)
    partial.rename(exported / str(version))
    if version > 3:
        shutil.rmtree(exported / str(version - 2))


def settled(server: served.Server) -> bool:
    """Whether the newest version of each model is loaded, and no other."""
    states = [server.status(name) for name in ("mrnn", "plain")]
    return all(
        state == ("AVAILABLE" if version == max(each) else "END")
        for each in states
        for version, (state, _) in each.items()
    )


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 900)
def test_good_clients_see_no_failure_among_hostile_ones(models, tmp_path):
    base = tmp_path / "models"
    for name in ("mrnn", "plain"):
        shutil.copytree(models / name, base / name)
    with (
        served.serving(tmp_path, base, f"--request_timeout_seconds={TIMEOUT}") as server,
        futures.ThreadPoolExecutor(GOOD + HOSTILE + 1) as pool,
    ):
        soak, pid = Soak(server.program), server.program.process.pid
        clients = [pool.submit(soak.client, soak.good, number) for number in range(GOOD)]
        clients.append(pool.submit(soak.client, soak.probe))

        def run(seconds: float) -> list[float]:
            """The memory as time goes by, while versions change."""
            memory, until = [], time.monotonic() + seconds
            while time.monotonic() < until and not any(each.done() for each in clients):
                memory.append(resident_megabytes(pid))
                time.sleep(1)
                if len(memory) % 30 == 15:
                    version = next(versions)
                    publish(base / ("mrnn", "plain")[version % 2], version)
            return memory

        versions = itertools.count(2)
        try:
            warming = run(WARM_UP)
            served.wait_for(lambda: settled(server))
            warm = resident_megabytes(pid)
            clients += [pool.submit(soak.client, soak.hostile, number) for number in range(HOSTILE)]
            memory = run(SECONDS - WARM_UP)
        finally:
            soak.stop.set()
        failures = [error for error in (client.exception() for client in clients) if error]
        served.wait_for(lambda: settled(server))
        with contextlib.suppress(AssertionError):  # the figures come first
            served.wait_for(lambda: resident_megabytes(pid) < warm + MEGABYTES, seconds=60)
        idle = resident_megabytes(pid)
        lines = server.program.err.splitlines()
        for attack in hostile.ATTACKS:
            counts = {heard: n for (name, heard), n in soak.heard.items() if name == attack}
            print(f"{attack.__name__}: {counts}")
        for way, seconds in soak.seconds.items():
            p50, p99, most = np.quantile(seconds, [0.5, 0.99, 1])
            print(
                f"{way}: {len(seconds)} answers, p50 {p50:.3f} p99 {p99:.3f} longest {most:.3f} s"
            )
        course = [f"{min(part):.0f}" for part in np.array_split(warming + memory, 30)]
        print(f"lowest memory in each thirtieth of the time: {' '.join(course)} MB")
        print(f"memory: {warm:.0f} MB warm, {max(memory):.0f} MB at most, {idle:.0f} MB at last")
        print(f"log: {len(lines)} lines in {SECONDS / 60:.1f} minutes")
        assert not failures
        assert not [pair for pair in soak.heard if pair[1] not in hostile.ATTACKS[pair[0]]]
        assert idle < warm + MEGABYTES
        assert len(lines) < LINES_A_MINUTE * SECONDS / 60
        assert "Traceback" not in server.program.err

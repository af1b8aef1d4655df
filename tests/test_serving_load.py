"""A minute of many clients while versions come, and one of them is broken."""

import dataclasses
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path

import grpc
import numpy as np
import pytest
import served
import tensorflow as tf
from tensorflow_serving.apis import prediction_service_pb2_grpc

CLIENTS = 32
SECONDS = float(os.environ.get("SERVING_LOAD_SECONDS", "60"))
GROWTH = 1.10  # of the memory, from the first third to the end


def resident_megabytes(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclasses.dataclass(frozen=True)
class Load:
    """What the clients ask, what they must hear, and how versions come."""

    name: str
    request: Callable  # of a client's number
    check: Callable  # of the number, the version that answered, and its outputs
    write: Callable  # of a version
    write_broken: Callable


def toy(base: Path, _) -> Load:
    def values(number):
        return np.full((1 + number % 3, 4), number, np.float32)

    def check(number, version, outputs):
        np.testing.assert_array_equal(outputs["y"], 2 * values(number) + version)

    return Load(
        "toy",
        lambda number: served.predict_request("double", {"x": values(number)}),
        check,
        lambda version: served.write(base, version),
        lambda version: served.write_broken(base, version),
    )


def captioner(base: Path, models: Path) -> Load:
    """A real export, in versions that say the same."""
    exported = models / "plain" / "1"
    features = np.random.default_rng(0).random((CLIENTS, 12), np.float32)
    whole = tf.saved_model.load(str(exported)).signatures["beam_decode"](
        features=tf.constant(features), prefix=tf.constant([""] * CLIENTS)
    )

    def check(number, _, outputs):
        assert outputs["captions"][0].tolist() == whole["captions"][number].numpy().tolist()
        np.testing.assert_allclose(outputs["log_probs"][0], whole["log_probs"][number], rtol=1e-4)

    def write(version, broken=False):
        partial = base / "plain" / f"{version}.partial"
        shutil.copytree(exported, partial)
        for path in (partial / "variables").iterdir() if broken else ():
            path.unlink()
        partial.rename(base / "plain" / str(version))

    def request(number):
        inputs = {"features": features[number : number + 1], "prefix": [b""]}
        return served.predict_request("beam_decode", inputs, "plain")

    return Load("plain", request, check, write, lambda version: write(version, broken=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [toy, captioner])
def test_many_clients_see_no_failure_while_versions_change(kind, models, tmp_path):
    base = tmp_path / "models"
    load = kind(base, models)
    load.write(1)
    with served.serving(tmp_path, base) as server, futures.ThreadPoolExecutor(CLIENTS) as pool:
        stop = threading.Event()

        def ask(number: int) -> list[tuple[int, float]]:
            """The versions that have answered, and the seconds they took."""
            answers = []
            options = [("grpc.use_local_subchannel_pool", 1)]
            with grpc.insecure_channel(server.address, options) as channel:
                stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
                request = load.request(number)
                while not stop.is_set():
                    began = time.perf_counter()
                    response = stub.Predict(request, timeout=30)
                    took = time.perf_counter() - began
                    version = response.model_spec.version.value
                    outputs = {k: tf.make_ndarray(v) for k, v in response.outputs.items()}
                    load.check(number, version, outputs)
                    answers.append((version, took))
            return answers

        asking = [pool.submit(ask, number) for number in range(CLIENTS)]
        try:
            memory = []
            events = {
                0.35: lambda: load.write(2),
                0.5: lambda: load.write_broken(3),
                0.65: lambda: load.write(4),
            }
            began = time.monotonic()
            while (part := (time.monotonic() - began) / SECONDS) < 1:
                for due in [due for due in events if due <= part]:
                    events.pop(due)()
                memory.append((part, resident_megabytes(server.program.process.pid)))
                time.sleep(SECONDS / 100)
            served.wait_for(lambda: server.status(load.name).get(2, ("",))[0] == "END")
        finally:
            stop.set()
        answers = [each.result() for each in asking]  # raises where a request has failed
        for versions in ([version for version, _ in each] for each in answers):
            assert versions == sorted(versions)
            assert {1, 4} <= set(versions) <= {1, 2, 4}
        assert server.status(load.name)[3][0] == "END"
        assert server.status(load.name)[3][1]

        took = np.sort([seconds for each in answers for _, seconds in each])
        warm = max(size for part, size in memory if part < 0.33)
        last = memory[-1][1]
        print(
            f"{len(took)} requests of {CLIENTS} clients in {SECONDS:.0f} s, none failed; "
            f"p50 {1e3 * np.quantile(took, 0.5):.1f} ms, p99 {1e3 * np.quantile(took, 0.99):.1f} "
            f"ms, longest {1e3 * took[-1]:.0f} ms; memory {warm:.0f} MB warm, {last:.0f} MB at last"
        )
        assert last < GROWTH * warm

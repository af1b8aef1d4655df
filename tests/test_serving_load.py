"""A minute of many clients while versions come, and one of them is broken."""

import os
import threading
import time
from concurrent import futures
from pathlib import Path

import grpc
import numpy as np
import pytest
import served
from tensorflow_serving.apis import prediction_service_pb2_grpc

CLIENTS = 32
SECONDS = float(os.environ.get("SERVING_LOAD_SECONDS", "60"))
GROWTH = 1.10  # of the memory, from the first third to the end


def resident_megabytes(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.slow
def test_many_clients_see_no_failure_while_versions_change(tmp_path):
    base = tmp_path / "models"
    served.write(base, 1)
    with served.serving(tmp_path, base) as server, futures.ThreadPoolExecutor(CLIENTS) as pool:
        stop = threading.Event()

        def ask(number: int) -> list[tuple[int, float]]:
            """The versions that have answered, and the seconds they took."""
            answers = []
            options = [("grpc.use_local_subchannel_pool", 1)]
            with grpc.insecure_channel(server.address, options) as channel:
                stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
                values = np.full((1 + number % 3, 4), number, np.float32)
                request = served.predict_request("double", {"x": values})
                while not stop.is_set():
                    began = time.perf_counter()
                    response = stub.Predict(request, timeout=30)
                    took = time.perf_counter() - began
                    y = np.reshape(response.outputs["y"].float_val, values.shape)
                    version = response.model_spec.version.value
                    np.testing.assert_array_equal(y, 2 * values + version)
                    answers.append((version, took))
            return answers

        asking = [pool.submit(ask, number) for number in range(CLIENTS)]
        try:
            memory = []
            events = {
                0.35: lambda: served.write(base, 2),
                0.5: lambda: served.write_broken(base, 3),
                0.65: lambda: served.write(base, 4),
            }
            began = time.monotonic()
            while (part := (time.monotonic() - began) / SECONDS) < 1:
                for due in [due for due in events if due <= part]:
                    events.pop(due)()
                memory.append((part, resident_megabytes(server.program.process.pid)))
                time.sleep(SECONDS / 100)
            served.wait_for(lambda: server.status().get(2, ("",))[0] == "END")
        finally:
            stop.set()
        answers = [each.result() for each in asking]  # raises where a request has failed
        for versions in ([version for version, _ in each] for each in answers):
            assert versions == sorted(versions)
            assert {1, 4} <= set(versions) <= {1, 2, 4}
        assert server.status()[3][0] == "END"
        assert server.status()[3][1]

        took = np.sort([seconds for each in answers for _, seconds in each])
        warm = max(size for part, size in memory if part < 0.33)
        last = memory[-1][1]
        print(
            f"{len(took)} requests of {CLIENTS} clients in {SECONDS:.0f} s, none failed; "
            f"p50 {1e3 * np.quantile(took, 0.5):.1f} ms, p99 {1e3 * np.quantile(took, 0.99):.1f} "
            f"ms, longest {1e3 * took[-1]:.0f} ms; memory {warm:.0f} MB warm, {last:.0f} MB at last"
        )
        assert last < GROWTH * warm

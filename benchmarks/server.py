"""The speed of `serving.local`: with batching against without, and against no server at all.

    python benchmarks/server.py
    python benchmarks/server.py --model_base_path models --model mrnn --signature beam_decode

Without a directory it makes a small model: three layers of 2048 units, whose weights every run
reads once, however many rows it has, as the weights of a captioner are. Two servers run side by
side, one of them with --nobatching, and are asked in turns over gRPC; the best round counts. The
clients share the cores with the server. A request has one row: the first of the model's warm-up
records for the signature, or zeros.
"""

import asyncio
import collections
import contextlib
import itertools
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator

import grpc
import numpy as np
import tensorflow as tf
from absl import app, flags
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from mrnn_tf import versions
from serving import tensors
from serving.served_version import Arrays, ServedSignature, ServedVersion, warmup_requests

_BASE_PATH = flags.DEFINE_string("model_base_path", None, "Models; default: a small one is made.")
_MODEL = flags.DEFINE_string("model", "mrnn", "The model to ask.")
_SIGNATURE = flags.DEFINE_string("signature", "serving_default", "The signature to ask.")
_CLIENTS = flags.DEFINE_integer("clients", 32, "Concurrent clients.")
_SECONDS = flags.DEFINE_float("seconds", 5.0, "Of each round.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Rounds of each side; the best counts.")
UNITS, LAYERS = 2048, 3
SIDES = {"batching": [], "one by one": ["--nobatching"]}


def main(_) -> None:
    with contextlib.ExitStack() as stack:
        base = _BASE_PATH.value or _make_model(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {name: stack.enter_context(_server(base, f)) for name, f in SIDES.items()}
        path = versions.newest(f"{base}/{_MODEL.value}")
        version = ServedVersion(_MODEL.value, 0, path)  # owns the variables
        signature = version.signature(_SIGNATURE.value)
        inputs = _one_row(signature, path)
        request = predict_pb2.PredictRequest(
            model_spec={"name": _MODEL.value, "signature_name": _SIGNATURE.value},
            inputs={n: tensors.to_proto(array, TensorProto) for n, array in inputs.items()},
        )

        async def direct() -> None:
            signature(inputs)

        rounds = collections.defaultdict(list)  # by side and number of clients
        for _ in range(_ROUNDS.value):
            rounds["direct", 1].append(asyncio.run(_round(direct, 1)))
            for (name, address), clients in itertools.product(servers.items(), (1, _CLIENTS.value)):
                rounds[name, clients].append(asyncio.run(_ask(address, request, clients)))

    print(f"`{_SIGNATURE.value}`")
    best = {side: max(results, key=len) for side, results in rounds.items()}
    for (name, clients), took in best.items():
        p50, p99 = 1e3 * np.quantile(took, [0.5, 0.99])
        speed = f"{len(took) / _SECONDS.value:8.1f} requests/s"
        print(f"  {name:12} {clients:3} clients {speed}, p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    ratio = len(best["batching", _CLIENTS.value]) / len(best["one by one", _CLIENTS.value])
    added = 1e3 * (np.median(best["batching", 1]) - np.median(best["direct", 1]))
    print(f"  ratio of batching to one by one: {ratio:.2f}")
    print(f"  the server adds {added:.2f} ms to a direct call")


@contextlib.contextmanager
def _server(base: str, arguments: list[str]) -> Iterator[str]:
    """The address of a server that is ready."""
    command = [sys.executable, "-m", "serving.local", f"--model_base_path={base}", "--port=0"]
    command += ["--rest_api_port=0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            # The last line before the server waits for requests, or its end.
            said = "".join(itertools.takewhile(lambda line: "next: " not in line, process.stdout))
            yield re.search(r"gRPC (\S+),", said)[1]
        finally:
            process.terminate()


async def _ask(address: str, request: predict_pb2.PredictRequest, clients: int) -> list[float]:
    options = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(address, options) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        return await _round(lambda: stub.Predict(request), clients)


async def _round(call: Callable[[], Awaitable], clients: int) -> list[float]:
    """The seconds of every call that concurrent clients made in a round."""
    await call()
    until = time.perf_counter() + _SECONDS.value
    took = []

    async def client() -> None:
        while (began := time.perf_counter()) < until:
            await call()
            took.append(time.perf_counter() - began)

    await asyncio.gather(*(client() for _ in range(clients)))
    return took


def _one_row(signature: ServedSignature, path: str) -> Arrays:
    for request in warmup_requests(path):
        if request.model_spec.signature_name == signature.name:
            return {name: tensors.to_array(proto)[:1] for name, proto in request.inputs.items()}
    shapes = {name: [size or 1 for size in spec.shape] for name, spec in signature.inputs.items()}
    return {n: tf.zeros(shapes[n], spec.dtype).numpy() for n, spec in signature.inputs.items()}


def _make_model(base: str) -> str:
    random = np.random.default_rng(0)
    model = tf.Module()
    model.kernels = [
        tf.Variable(random.normal(0, UNITS**-0.5, (UNITS, UNITS)).astype(np.float32))
        for _ in range(LAYERS)
    ]

    @tf.function(input_signature=[tf.TensorSpec([None, UNITS], name="features")])
    def serve(features):
        for kernel in model.kernels:
            features = tf.tanh(features @ kernel)
        return dict(zip(("scores", "ids"), tf.math.top_k(features, 5), strict=True))

    tf.saved_model.save(model, f"{base}/{_MODEL.value}/1", {_SIGNATURE.value: serve})
    return base


if __name__ == "__main__":
    app.run(main)

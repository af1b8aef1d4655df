"""Serves models by TF Serving's protocol on a machine without Docker: gRPC and REST.

Example:

    python -m serving.local --model_base_path models

Every model below the directory is served in its newest version, `models/<name>/<version>/`. A newer
version replaces the older one while requests go on; a broken one is reported and the older stays.
SIGTERM or Ctrl-C ends it, after the running requests. In production use TF Serving.
"""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys

import tensorflow as tf
import uvicorn
from absl import flags, logging
from grpc_health.v1 import health, health_pb2

from mrnn_tf import program
from mrnn_tf.errors import UserError
from serving import grpc_api, rest_api
from serving.batching import Batcher
from serving.prediction import Predictor
from serving.servables import Servable, Servables

_BASE_PATH = flags.DEFINE_string("model_base_path", None, "The directory of the models.")
_HOST = flags.DEFINE_string(
    "host", "127.0.0.1", "The address to listen on; 0.0.0.0 lets other machines in."
)
_PORT = flags.DEFINE_integer("port", 8500, "For gRPC; 0 takes a free one.", 0, 65535)
_REST_PORT = flags.DEFINE_integer("rest_api_port", 8501, "For REST; 0 takes a free one.", 0, 65535)
_POLL = flags.DEFINE_float("poll_seconds", 1.0, "Between two looks for new versions.", 0.01)
_BATCHING = flags.DEFINE_bool("batching", True, "Run concurrent requests together.")
_MAX_BATCH = flags.DEFINE_integer("max_batch_size", 64, "Rows of a merged batch.", 1)
_BATCH_TIMEOUT = flags.DEFINE_float(
    "batch_timeout_ms", 2.0, "How long a request may wait for others to join it.", 0
)
_MAX_QUEUED = flags.DEFINE_integer(
    "max_queued", 256, "Waiting requests beyond which new ones are refused as UNAVAILABLE.", 1
)
_TIMEOUT = flags.DEFINE_float("request_timeout_seconds", 60.0, "For the whole of a request.", 0.001)
_MAX_BYTES = flags.DEFINE_integer("max_message_bytes", 64 << 20, "The largest request.", 1)
_INTRA_OP = flags.DEFINE_integer(
    "intra_op_threads", None, "Threads of one TensorFlow op; default: as many as cores.", 1
)
_GRACE = flags.DEFINE_float("grace_seconds", 10.0, "For running requests when stopped.", 0)


class _RestServer(uvicorn.Server):
    """Leaves the signals to this program."""

    def capture_signals(self):
        return contextlib.nullcontext()


def main(_) -> None:
    if _BASE_PATH.value is None:
        raise UserError("--model_base_path is required (--help shows an example).")
    if _INTRA_OP.value:
        tf.config.threading.set_intra_op_parallelism_threads(_INTRA_OP.value)
    # What is imported by now stays: collecting an unloaded version need not look at it.
    gc.collect()
    gc.freeze()
    asyncio.run(_serve(_BASE_PATH.value))


async def _serve(base_path: str) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)

    place = ""  # known when the ports are

    def announce(servable: Servable) -> None:
        path = f"{place}/v1/models/{servable.name}"
        print(f"serving {servable.name} version {servable.version}: {path}", flush=True)

    servables = Servables(base_path, _MAX_BYTES.value, announce)
    max_rows = _MAX_BATCH.value if _BATCHING.value else 0
    batcher = Batcher(max_rows, _BATCH_TIMEOUT.value / 1000, _MAX_QUEUED.value)
    predictor = Predictor(servables, batcher, _TIMEOUT.value)

    healthy = health.aio.HealthServicer()
    await healthy.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    grpc_server = grpc_api.create(predictor, healthy, _MAX_BYTES.value)
    _listen("port", _PORT.value).close()  # gRPC would print more than one sentence
    port = grpc_server.add_insecure_port(f"{_HOST.value}:{_PORT.value}")
    rest_socket = _listen("rest_api_port", _REST_PORT.value)
    # asyncio does this only to sockets of its own making; without it an answer takes 40 ms.
    rest_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    rest_port = rest_socket.getsockname()[1]
    place = f"gRPC {_HOST.value}:{port}, REST http://{_HOST.value}:{rest_port}"
    rest_server = _RestServer(
        uvicorn.Config(
            rest_api.create(predictor, _MAX_BYTES.value),
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=max(1, round(_GRACE.value)),
        )
    )

    await grpc_server.start()
    serving_rest = asyncio.create_task(rest_server.serve([rest_socket]))
    watching = asyncio.create_task(_watch(servables, healthy, place))
    stopping = asyncio.create_task(stopped.wait())
    await asyncio.wait({watching, stopping}, return_when=asyncio.FIRST_COMPLETED)

    logging.info("Stopping")
    await healthy.enter_graceful_shutdown()
    rest_server.should_exit = True
    await asyncio.gather(grpc_server.stop(_GRACE.value), serving_rest)
    if watching.done():
        watching.result()
    watching.cancel()
    if batcher.busy or servables.loading:
        # Python would wait for the threads of TensorFlow, however long they take.
        logging.warning("Stopped before all work was done")
        sys.stdout.flush()
        os._exit(0)


async def _watch(servables: Servables, healthy: health.aio.HealthServicer, place: str) -> None:
    await servables.poll()
    if not servables.ready:
        print(f"waiting for a model below {_BASE_PATH.value}: {place}", flush=True)
    while not servables.ready:
        await asyncio.sleep(_POLL.value)
        await servables.poll()
    await healthy.set("", health_pb2.HealthCheckResponse.SERVING)
    print("next: python -m serving.client status", flush=True)
    while True:
        await asyncio.sleep(_POLL.value)
        await servables.poll()


def _listen(flag: str, port: int) -> socket.socket:
    try:
        return socket.create_server((_HOST.value, port))
    except OSError as error:
        raise UserError(
            f"--{flag}: cannot listen on {_HOST.value}:{port} ({error.strerror}); 0 takes a free "
            "port."
        ) from None


if __name__ == "__main__":
    program.run(main)

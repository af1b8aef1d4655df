"""Serves models by TF Serving's protocol on a machine without Docker: gRPC and REST.

Example:

    python -m serving.local --model_base_path models
    python -m serving.local --model_config_file models.config

Every model of the directory is served in its newest version, `models/<name>/<version>/`; TF
Serving's configuration file pins versions and gives them labels. A newer version replaces the older
one while requests go on; a broken one is reported and the older stays. Metrics for Prometheus are
at `/monitoring/prometheus/metrics` on the port for REST. SIGTERM or Ctrl-C ends it, after the
running requests. In production use TF Serving.
"""

from mrnn_tf import program
from serving.options import LocalOptions

if __name__ == "__main__":  # before all other imports: --help needs no TensorFlow
    program.main("serving.local:serve", LocalOptions)

import asyncio
import contextlib
import ctypes
import gc
import itertools
import logging as python_logging
import os
import signal
import socket

import tensorflow as tf
import uvicorn
from absl import logging
from grpc_health.v1 import health, health_pb2

from mrnn_tf import memory
from mrnn_tf.config import Config
from mrnn_tf.errors import UserError
from serving import rest_api
from serving.batching import Batcher
from serving.connections import Connections
from serving.grpc_api import Services
from serving.limits import Uploads
from serving.model_directory import ModelDirectory
from serving.monitoring import Calls, LogLimit
from serving.served_version import ServedVersion

# Connections that are accepted at once: few, so that each is read before many others come.
_BACKLOG = 128
_POLLS_TO_TRIM = 10
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
_HEAP_BYTES = 32 << 20  # the largest block of a heap; glibc allows no more
_KEPT_BYTES = 512 << 20  # at the end of a heap, until memory is given back
_LOG_LINES, _LOG_SECONDS = 10, 60.0  # warnings and errors of one place in the code


def serve(options: LocalOptions) -> None:
    """Serves models until SIGTERM or SIGINT."""
    _return_memory()
    if options.intra_op_threads:  # for the sessions, and for what runs before the first of them
        tf.config.threading.set_intra_op_parallelism_threads(options.intra_op_threads)
    # What is imported by now stays: collecting an unloaded version need not look at it.
    gc.collect()
    gc.freeze()
    log_limit = LogLimit(_LOG_LINES, _LOG_SECONDS)
    for handler in python_logging.getLogger().handlers:
        handler.addFilter(log_limit)
    asyncio.run(_serve(options, log_limit))


def _return_memory() -> None:
    """Lets freed memory go back to the system, where `memory.give_back` sends it now and then.

    oneDNN's own allocator never gives back what many runs at once have needed. By default glibc
    has several heaps for every core, and large blocks come from outside them, at the cost of new
    pages for each.
    """
    os.environ.setdefault("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "1")
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_M_MMAP_THRESHOLD, _HEAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_ARENA_MAX, os.cpu_count() or 1)


async def _serve(options: LocalOptions, log_limit: LogLimit) -> None:
    address = ""  # known when the ports are

    def announce(served: ServedVersion) -> None:
        path = f"{address}/v1/models/{served.name}"
        print(f"serving {served.name} version {served.version}: {path}", flush=True)

    places = options.model_base_path, options.model_config_file
    models = ModelDirectory(announce, *places, options.intra_op_threads)
    max_rows = options.max_batch_size if options.batching else 0
    batcher = Batcher(max_rows, options.batch_timeout_ms / 1000, options.max_queued)
    calls = Calls(models, options.log_requests)
    uploads = Uploads(options.max_inflight_bytes, options.read_timeout_seconds, options.max_queued)
    services = Services(models, batcher, calls, uploads, options)
    limits = options.max_connections, options.max_inflight_bytes
    connections = Connections(*limits, options.read_timeout_seconds, uploads.evict)

    healthy = health.aio.HealthServicer()
    await healthy.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    grpc_server = services.server(healthy)
    listen("port", options).close()  # gRPC would print more than one sentence
    port = grpc_server.add_insecure_port(f"{options.host}:{options.port}")
    rest_socket = listen("rest_api_port", options)
    rest_port = rest_socket.getsockname()[1]
    address = f"gRPC {options.host}:{port}, REST http://{options.host}:{rest_port}"
    quiet = {"lifespan": "off", "log_config": None, "access_log": False}
    rest_server = uvicorn.Server(
        uvicorn.Config(
            rest_api.create(services),
            http=connections.protocol,
            ws="none",
            backlog=_BACKLOG,
            timeout_keep_alive=options.read_timeout_seconds + 1,  # `Connection` ends it before
            timeout_graceful_shutdown=max(1, round(options.grace_seconds)),
            **quiet,
        )
    )
    rest_server.capture_signals = contextlib.nullcontext  # signals are this program's

    await grpc_server.start()
    serving_rest = asyncio.create_task(rest_server.serve([rest_socket]))
    flags = _client_flags(options.host, port)
    watching = asyncio.create_task(_watch(models, healthy, address, flags, options, log_limit))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, watching.cancel)
    await asyncio.wait([watching])

    logging.info("Stopping")
    await healthy.enter_graceful_shutdown()
    rest_server.should_exit = True
    await asyncio.gather(grpc_server.stop(options.grace_seconds), serving_rest)
    if not watching.cancelled():
        watching.result()  # raises
    if batcher.running or models.loading:
        # Python would wait for the threads of TensorFlow, however long they take.
        logging.warning("Stopped before all work was done")
        os._exit(0)


async def _watch(
    models: ModelDirectory,
    healthy: health.aio.HealthServicer,
    address: str,
    flags: str,
    options: LocalOptions,
    log_limit: LogLimit,
) -> None:
    """Polls for ever; the server is healthy from when all models are loaded."""
    await models.poll()
    if not models.ready:
        place = options.model_base_path or options.model_config_file
        print(f"waiting for a model in {place}: {address}", flush=True)
    while not models.ready:
        await asyncio.sleep(options.poll_seconds)
        await models.poll()
    await healthy.set("", health_pb2.HealthCheckResponse.SERVING)
    print(f"next: python -m serving.client status{flags}", flush=True)
    for polls in itertools.count():
        await asyncio.sleep(options.poll_seconds)
        await models.poll()
        log_limit.begin_anew()
        if polls % _POLLS_TO_TRIM == 0:
            await asyncio.to_thread(memory.give_back)  # what large requests have freed


def _client_flags(host: str, port: int) -> str:
    """The flags with which a client on this machine reaches the server, unless by default."""
    server = f"{'127.0.0.1' if host in ('', '0.0.0.0', '::') else host}:{port}"
    return "" if (host, port) == (LocalOptions.host, LocalOptions.port) else f" --server {server}"


def listen(name: str, options: Config) -> socket.socket:
    """A socket on `options.host` and the port of that name."""
    host, port = options.host, getattr(options, name)
    try:
        listening = socket.create_server((host, port))
    except OSError as error:
        sentence = f"cannot listen on {host}:{port} ({error.strerror}); 0 takes a free port."
        raise UserError(f"`{name}`: {sentence}") from None
    # asyncio does this only to sockets of its own making; without it an answer takes 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening

"""TF Serving's REST paths: status, metadata and predict, in JSON, and metrics."""

import asyncio
import dataclasses
import json
import re
from collections.abc import Callable, Coroutine
from concurrent import futures
from typing import Any

import fastapi
import grpc
from google.protobuf import json_format, message
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from tensorflow_serving.apis import model_pb2

from serving import json_tensors, monitoring
from serving.grpc_api import SIGNATURES, Services
from serving.limits import Slow, Upload
from serving.monitoring import Call
from serving.served_version import Refused

HTTP_CODES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.CANCELLED: 499,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
_MODEL = "/v1/models/{name}"
_PATHS = (_MODEL, _MODEL + "/versions/{version}", _MODEL + "/labels/{label}")
_GONE = Refused("the client is gone.", grpc.StatusCode.CANCELLED)
_VERSION = re.compile(r"[0-9]{1,19}")
_MAX_VALUES = 1 << 20  # numbers, strings, lists and objects of a body
# What is parsed on the event loop at once; more goes to a thread.
_SMALL_BYTES, _FEW_VALUES = 1 << 20, 10_000


@dataclasses.dataclass(frozen=True)
class Work:
    """How much a body, or an answer, gives to do."""

    size: int = 0  # bytes
    values: int = 0


class Threads:
    """Threads for large bodies and answers: what is small is done at once, on the event loop.

    Long strings, as of photographs, are quick; many values are not, and have a thread of their own.
    """

    def __init__(self):
        self._strings, self._values = (futures.ThreadPoolExecutor(1, "json") for _ in range(2))

    async def run(self, work: Work, function: Callable, *arguments) -> Any:
        is_quick = work.values < _FEW_VALUES
        if is_quick and work.size < _SMALL_BYTES:
            return function(*arguments)
        thread = self._strings if is_quick else self._values
        return await asyncio.get_running_loop().run_in_executor(thread, function, *arguments)


def create(services: Services) -> fastapi.FastAPI:
    app = fastapi.FastAPI(openapi_url=None, redirect_slashes=False)
    threads = Threads()

    async def status(request: fastapi.Request):
        return _json(_fields(services.models.status(_spec(request))))

    async def metadata(request: fastapi.Request):
        fields = _fields(services.metadata(_spec(request)))
        del fields["metadata"][SIGNATURES]["@type"]  # TF Serving has none
        return _json(fields)

    async def predict(request: fastapi.Request):
        spec, max_bytes = _spec(request), services.limits.max_message_bytes
        async with services.uploads.room() as upload:
            content = await upload.read(content_of(request, upload, max_bytes))
            with services.calls.observe(Call("REST", "predict", spec)) as call:
                work = Work(len(content), values(content))
                body = await threads.run(work, _parse, content)
                del content
                return await _while_connected(request, answer(request, call, work, body))

    async def answer(request: fastapi.Request, call: Call, work: Work, body: dict):
        layout = json_tensors.layout(body)
        call.spec = _spec(request, body.get("signature_name", ""))
        outputs = await services.predict(
            call, lambda signature: threads.run(work, json_tensors.read, signature, body)
        )
        work = Work(values=sum(array.size for array in outputs.values()))
        return await threads.run(work, lambda: _json(json_tensors.write(outputs, layout)))

    for path in _PATHS:
        app.get(path)(status)
        app.get(path + "/metadata")(metadata)
        app.post(path + ":predict")(predict)

    @app.get("/monitoring/prometheus/metrics")
    async def metrics():
        lines = [*services.calls.metrics(), *services.batcher.metrics(), ""]
        return fastapi.Response("\n".join(lines), media_type=monitoring.CONTENT_TYPE)

    @app.exception_handler(Refused)
    async def refused(_, error: Refused):
        code = 408 if isinstance(error, Slow) else HTTP_CODES.get(error.code, 500)
        return _json({"error": str(error)}, code)

    @app.exception_handler(HTTPException)
    async def malformed(request: fastapi.Request, error: HTTPException):
        if error.status_code == 413:
            return _json({"error": error.detail}, 413)
        path = request.url.path
        code = 400 if path.startswith("/v1/") else 404
        return _json({"error": str(Refused(f"Malformed request: {request.method} {path}"))}, code)

    @app.exception_handler(500)
    async def failed(*_):
        return _json({"error": "the server failed: see its log."}, 500)

    return app


def _json(content: Any, code: int = 200) -> fastapi.Response:
    # Starlette's own JSON has no NaN, which TF Serving's has.
    return fastapi.Response(json.dumps(content), code, media_type="application/json")


def _fields(proto: message.Message) -> dict:
    return json_format.MessageToDict(
        proto, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def _spec(request: fastapi.Request, signature_name: Any = "") -> model_pb2.ModelSpec:
    """What the path of a request names."""
    path = request.path_params
    if ":" in path["name"] + path.get("label", ""):  # a verb, of another method
        raise HTTPException(405)
    if not _VERSION.fullmatch(path.get("version", "0")):
        raise HTTPException(404)
    if not isinstance(signature_name, str):
        raise Refused("'signature_name' must be a string.")
    try:
        spec = model_pb2.ModelSpec(name=path["name"], signature_name=signature_name)
        if "version" in path:
            spec.version.value = int(path["version"])
        if "label" in path:
            spec.version_label = path["label"]
    except ValueError as error:  # not Unicode, or beyond int64
        raise Refused(f"Malformed request: {error}") from None
    return spec


async def content_of(request: fastapi.Request, upload: Upload, max_bytes: int) -> bytes:
    """The body of a request, of at most `max_bytes`."""
    too_large = HTTPException(413, f"the body is larger than {max_bytes} bytes.")
    if int(request.headers.get("content-length", 0)) > max_bytes:
        raise too_large
    content = bytearray()
    try:
        async for part in request.stream():
            if len(content) + len(part) > max_bytes:
                raise too_large
            await upload.grow(len(part))
            content += part
    except ClientDisconnect:
        raise _GONE from None
    return bytes(content)


async def _while_connected(request: fastapi.Request, answer: Coroutine) -> fastapi.Response:
    """The answer, which is given up when the client is gone."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.create_task(answer), asyncio.create_task(disconnected())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            return tasks[0].result()
        raise _GONE
    finally:
        for task in tasks:
            task.cancel()


def values(content: bytes) -> int:
    """At most how many values a body holds, from the signs between them."""
    values = 1 + sum(map(content.count, (b",", b"[", b"{")))
    if values > _MAX_VALUES:
        raise Refused(f"the body has more than {_MAX_VALUES} values: use gRPC, or fewer rows.")
    return values


def _parse(content: bytes) -> dict:
    """The JSON object of a request."""
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Refused(f"JSON Parse error: {error}") from None
    if not isinstance(parsed, dict):
        raise Refused("the body must be a JSON object.")
    return parsed

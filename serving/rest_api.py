"""TF Serving's REST paths: status, metadata and predict, in JSON, and metrics."""

import json
from typing import Any

import fastapi
import grpc
from google.protobuf import json_format, message
from starlette.exceptions import HTTPException
from tensorflow_serving.apis import model_pb2

from serving import json_tensors, monitoring
from serving.grpc_api import SIGNATURES, Services
from serving.monitoring import Call
from serving.served_version import Refused

_HTTP_CODES = {
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
_PATHS = (_MODEL, _MODEL + "/versions/{version:int}", _MODEL + "/labels/{label}")


def create(services: Services) -> fastapi.FastAPI:
    app = fastapi.FastAPI(openapi_url=None, redirect_slashes=False)

    async def status(request: fastapi.Request):
        return _json(_fields(services.models.status(_spec(request))))

    async def metadata(request: fastapi.Request):
        fields = _fields(services.metadata(_spec(request)))
        del fields["metadata"][SIGNATURES]["@type"]  # TF Serving has none
        return _json(fields)

    async def predict(request: fastapi.Request):
        spec, content = _spec(request), await _content(request, services.max_bytes)
        with services.calls.observe(Call("REST", "predict", spec)) as call:
            body = _parse(content)
            layout = json_tensors.layout(body)
            call.spec = _spec(request, body.get("signature_name", ""))
            outputs = await services.predict(call, lambda s: json_tensors.read(s, body))
            return _json(json_tensors.write(outputs, layout))

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
        return _json({"error": str(error)}, _HTTP_CODES.get(error.code, 500))

    @app.exception_handler(HTTPException)
    async def malformed(request: fastapi.Request, error: HTTPException):
        if error.status_code == 413:
            return _json({"error": error.detail}, 413)
        path = request.url.path
        code = 400 if path.startswith("/v1/") else 404
        return _json({"error": f"Malformed request: {request.method} {path}"}, code)

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
    if not isinstance(signature_name, str):
        raise Refused("'signature_name' must be a string.")
    try:
        spec = model_pb2.ModelSpec(name=path["name"], signature_name=signature_name)
        if "version" in path:
            spec.version.value = path["version"]
        if "label" in path:
            spec.version_label = path["label"]
    except ValueError as error:  # not Unicode, or beyond int64
        raise Refused(f"Malformed request: {error}") from None
    return spec


async def _content(request: fastapi.Request, max_bytes: int) -> bytes:
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > max_bytes:
            raise HTTPException(413, f"the body is larger than {max_bytes} bytes.")
    return bytes(content)


def _parse(content: bytes) -> dict:
    """The JSON object of a request."""
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Refused(f"JSON Parse error: {error}") from None
    if not isinstance(parsed, dict):
        raise Refused("the body must be a JSON object.")
    return parsed

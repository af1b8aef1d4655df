"""What the server answers, by gRPC: TF Serving's services, and the standard health service."""

import asyncio
import dataclasses
import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2_grpc
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc
from tensorflow_serving.apis.get_model_metadata_pb2 import GetModelMetadataResponse, SignatureDefMap
from tensorflow_serving.apis.model_pb2 import ModelSpec
from tensorflow_serving.apis.predict_pb2 import PredictResponse

from mrnn_tf.errors import UserError
from serving import tensors
from serving.batching import Batcher
from serving.connections import hang_up
from serving.limits import Unread, Uploads, check_inputs, check_rows
from serving.model_directory import ModelDirectory
from serving.monitoring import Call, Calls
from serving.options import Limits
from serving.served_version import Arrays, Refused, ServedSignature, from_proto

SIGNATURES = "signature_def"  # the one field of metadata
_PREDICT = "/tensorflow.serving.PredictionService/Predict"
_MAX_OTHER_BYTES = 1 << 16  # of a request that is not to predict
_MAX_FIELDS = 4 << 20  # that are short
# A tag of PredictRequest's `inputs` or a shape's sizes, of `output_filter`, of a tensor's strings,
# becomes T, and a length below 16 L.
_TAGS = {2 << 3 | 2, 3 << 3 | 2, 8 << 3 | 2}
_SHORT_FIELDS = bytes(ord("L" if i < 16 else "T" if i in _TAGS else "-") for i in range(256))
_MAX_STREAMS = 128  # calls of a connection at a time


def _named(method):
    """Refuses a request that names no model."""

    @functools.wraps(method)
    async def checked(self, request, context):
        if not request.HasField("model_spec"):
            raise Refused("Missing ModelSpec")
        return await method(self, request, context)

    return checked


class _Admission(grpc.aio.ServerInterceptor):
    """Reads messages within the limits, and turns `Refused` into the status of a call.

    A method with one request and one answer is served as one with streams of them, which is the
    same on the wire: only so may the server wait with reading a request, give it up, and know when
    its answer is taken. Requests to predict and all others have room of their own, so that the
    server's health is answered whatever it predicts.
    """

    def __init__(self, uploads: Uploads, limits: Limits):
        self._max_bytes = limits.max_message_bytes
        self._uploads = uploads
        # Other requests are so small that they come at once, or not at all.
        times = limits.read_timeout_seconds, limits.max_queued, 1
        self._others = Uploads(2 * self._max_bytes, *times)

    async def intercept_service(self, continuation, details):
        handler = await continuation(details)
        if handler is None or handler.request_streaming:
            return handler
        predicts = details.method == _PREDICT
        uploads = self._uploads if predicts else self._others
        max_bytes = self._max_bytes if predicts else _MAX_OTHER_BYTES
        answer = handler.unary_stream if handler.response_streaming else handler.unary_unary

        async def read_and_answer(context):
            if not inspect.iscoroutinefunction(answer):  # what the generated class answers
                raise Refused("Method not implemented!", grpc.StatusCode.UNIMPLEMENTED)
            async with uploads.room(self._max_bytes) as upload:
                content = await upload.read(_message(context))
                if len(content) > max_bytes:
                    sentence = f"the request is larger than {max_bytes} bytes."
                    raise Refused(sentence, grpc.StatusCode.RESOURCE_EXHAUSTED)
                request = parse(content, handler.request_deserializer)
                del content
                response = await answer(request, context)
                del request
                if handler.response_streaming:  # which it has written
                    return
                content = handler.response_serializer(response)
                del response
                await upload.send(content, context.write)

        async def refusal(context) -> tuple[grpc.StatusCode, str] | None:
            try:
                await read_and_answer(context)
            except Refused as error:
                return error.code, str(error)

        async def admitted(_, context):
            try:
                if refused := await refusal(context):
                    # Nothing refers to the request any more: a client may be slow to listen.
                    await context.abort(*refused)
                return
            except Unread:
                hang_up(context.peer())  # or gRPC would keep the answer
            except grpc.aio.InternalError:
                pass  # the client is gone
            await asyncio.Event().wait()  # until gRPC cancels the call

        serializer = handler.response_serializer if handler.response_streaming else None
        return grpc.stream_stream_rpc_method_handler(admitted, None, serializer)


def parse(content: bytes, deserialize: Callable[[bytes], Message]) -> Message:
    """The request of a message, which may have at most `_MAX_FIELDS` short fields.

    An empty string is 2 bytes of a message and 31 of memory.
    """
    if content.translate(_SHORT_FIELDS).count(b"TL") > _MAX_FIELDS:
        raise Refused(f"the request has more than {_MAX_FIELDS} values.")
    try:
        return deserialize(content)
    except DecodeError:
        raise Refused("the request cannot be parsed.") from None


async def _message(context: grpc.aio.ServicerContext) -> bytes:
    message = await context.read()
    if message is grpc.aio.EOF:
        raise Refused("the call has no request.")
    return message


@dataclasses.dataclass
class Services(
    prediction_service_pb2_grpc.PredictionServiceServicer,
    model_service_pb2_grpc.ModelServiceServicer,
):
    """The methods of gRPC, and what they have in common with REST."""

    models: ModelDirectory
    batcher: Batcher
    calls: Calls
    uploads: Uploads
    limits: Limits

    def server(self, health_servicer: health.aio.HealthServicer) -> grpc.aio.Server:
        """A server that has no port yet."""
        options = {
            "grpc.so_reuseport": 0,
            "grpc.max_receive_message_length": self.limits.max_message_bytes,
            "grpc.max_allowed_incoming_connections": self.limits.max_connections,
            "grpc.max_concurrent_streams": _MAX_STREAMS,
            "grpc.server_handshake_timeout_ms": round(1000 * self.limits.read_timeout_seconds),
        }
        admission = _Admission(self.uploads, self.limits)
        server = grpc.aio.server(interceptors=[admission], options=list(options.items()))
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(self, server)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(self, server)
        health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
        return server

    async def predict(
        self,
        call: Call,
        read: Callable[[ServedSignature], Awaitable[Arrays]],
        outputs: Sequence = (),
        seconds: float | None = None,
    ) -> Arrays:
        """Runs a signature on the inputs that `read` makes of a request, within `seconds`.

        Returns its results: those that `outputs` names, or all.
        """
        version = self.models.find(call.spec)
        signature = version.signature(call.spec.signature_name)
        call.spec = version.spec(signature.name)
        wanted = signature.choose(outputs)
        inputs = await read(signature)
        check_inputs(self.limits, inputs)
        call.rows = signature.rows(inputs)
        began = time.perf_counter()
        limit = self.limits.request_timeout_seconds
        limit = limit if seconds is None else min(seconds, limit)
        try:
            async with asyncio.timeout(limit):
                results = await self.batcher.run(signature, inputs, limit)
        except TimeoutError:
            sentence = f"no answer within {limit:g} seconds."
            raise Refused(sentence, grpc.StatusCode.DEADLINE_EXCEEDED) from None
        call.runtime = time.perf_counter() - began
        return {name: results[name] for name in wanted}

    def metadata(self, spec: ModelSpec) -> GetModelMetadataResponse:
        """The definitions of a model's signatures."""
        version = self.models.find(spec)
        response = GetModelMetadataResponse(model_spec=version.spec())
        response.metadata[SIGNATURES].Pack(SignatureDefMap(signature_def=version.definitions))
        return response

    @_named
    async def Predict(self, request, context):
        to_array = functools.partial(from_proto, max_bytes=self.limits.max_message_bytes)

        async def read(signature: ServedSignature) -> Arrays:
            for name, proto in request.inputs.items():  # before anything is made of its values
                check_rows(self.limits, name, [dim.size for dim in proto.tensor_shape.dim])
            return signature.read(request.inputs, to_array)

        with self.calls.observe(Call("GRPC", "Predict", request.model_spec)) as call:
            seconds = context.time_remaining()
            outputs = await self.predict(call, read, request.output_filter, seconds)
            try:
                protos = {n: tensors.to_proto(array, TensorProto) for n, array in outputs.items()}
            except UserError as error:
                raise Refused(str(error), grpc.StatusCode.UNIMPLEMENTED) from None
            return PredictResponse(model_spec=call.spec, outputs=protos)

    @_named
    async def GetModelMetadata(self, request, _):
        if not request.metadata_field:
            raise Refused("GetModelMetadataRequest must specify at least one metadata_field")
        if others := set(request.metadata_field) - {SIGNATURES}:
            raise Refused(f"Metadata field {', '.join(sorted(others))} is not supported")
        return self.metadata(request.model_spec)

    @_named
    async def GetModelStatus(self, request, _):
        return self.models.status(request.model_spec)

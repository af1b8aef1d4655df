"""What the server answers, by gRPC: TF Serving's services, and the standard health service."""

import asyncio
import dataclasses
import functools
import time
from collections.abc import Callable, Sequence

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc
from tensorflow_serving.apis.get_model_metadata_pb2 import GetModelMetadataResponse, SignatureDefMap
from tensorflow_serving.apis.model_pb2 import ModelSpec
from tensorflow_serving.apis.predict_pb2 import PredictResponse

from mrnn_tf.errors import UserError
from serving import tensors
from serving.batching import Batcher
from serving.model_directory import ModelDirectory
from serving.monitoring import Call, Calls
from serving.served_version import Arrays, Refused, ServedSignature, from_proto

SIGNATURES = "signature_def"  # the one field of metadata


def _refusing(method):
    """Turns `Refused` into the status of the call."""

    @functools.wraps(method)
    async def guarded(self, request, context):
        try:
            if not request.HasField("model_spec"):
                raise Refused("Missing ModelSpec")
            return await method(self, request)
        except Refused as refused:
            await context.abort(refused.code, str(refused))

    return guarded


@dataclasses.dataclass
class Services(
    prediction_service_pb2_grpc.PredictionServiceServicer,
    model_service_pb2_grpc.ModelServiceServicer,
):
    """The methods of gRPC, and what they have in common with REST."""

    models: ModelDirectory
    batcher: Batcher
    calls: Calls
    timeout_seconds: float
    max_bytes: int  # of a request

    def server(self, health_servicer: health.aio.HealthServicer) -> grpc.aio.Server:
        """A server that has no port yet."""
        limits = [("grpc.max_receive_message_length", self.max_bytes), ("grpc.so_reuseport", 0)]
        server = grpc.aio.server(options=limits)
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(self, server)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(self, server)
        health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
        return server

    async def predict(
        self, call: Call, read: Callable[[ServedSignature], Arrays], outputs: Sequence = ()
    ) -> Arrays:
        """Runs a signature on the inputs that `read` makes of a request.

        Returns its results: those that `outputs` names, or all.
        """
        version = self.models.find(call.spec)
        signature = version.signature(call.spec.signature_name)
        call.spec = version.spec(signature.name)
        wanted = signature.choose(outputs)
        inputs = read(signature)
        call.rows = signature.rows(inputs)
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self.timeout_seconds):
                results = await self.batcher.run(signature, inputs)
        except TimeoutError:
            sentence = f"no answer within {self.timeout_seconds:g} seconds."
            raise Refused(sentence, grpc.StatusCode.DEADLINE_EXCEEDED) from None
        call.runtime = time.perf_counter() - began
        return {name: results[name] for name in wanted}

    def metadata(self, spec: ModelSpec) -> GetModelMetadataResponse:
        """The definitions of a model's signatures."""
        version = self.models.find(spec)
        response = GetModelMetadataResponse(model_spec=version.spec())
        response.metadata[SIGNATURES].Pack(SignatureDefMap(signature_def=version.definitions))
        return response

    @_refusing
    async def Predict(self, request):
        to_array = functools.partial(from_proto, max_bytes=self.max_bytes)
        read = functools.partial(ServedSignature.read, values=request.inputs, to_array=to_array)
        with self.calls.observe(Call("GRPC", "Predict", request.model_spec)) as call:
            outputs = await self.predict(call, read, request.output_filter)
            try:
                protos = {n: tensors.to_proto(array, TensorProto) for n, array in outputs.items()}
            except UserError as error:
                raise Refused(str(error), grpc.StatusCode.UNIMPLEMENTED) from None
            return PredictResponse(model_spec=call.spec, outputs=protos)

    @_refusing
    async def GetModelMetadata(self, request):
        if not request.metadata_field:
            raise Refused("GetModelMetadataRequest must specify at least one metadata_field")
        if others := set(request.metadata_field) - {SIGNATURES}:
            raise Refused(f"Metadata field {', '.join(sorted(others))} is not supported")
        return self.metadata(request.model_spec)

    @_refusing
    async def GetModelStatus(self, request):
        return self.models.status(request.model_spec)

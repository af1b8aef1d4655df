"""TF Serving's gRPC services, and the standard health service."""

import functools

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from mrnn_tf.errors import UserError
from serving import tensors
from serving.prediction import Predictor
from serving.refusal import Refused, invalid

SIGNATURES = "signature_def"  # the one field of metadata


def create(
    predictor: Predictor, health_servicer: health.aio.HealthServicer, max_bytes: int
) -> grpc.aio.Server:
    """A server that has no port yet."""
    options = [("grpc.max_receive_message_length", max_bytes), ("grpc.so_reuseport", 0)]
    server = grpc.aio.server(options=options)
    services = _Services(predictor, max_bytes)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(services, server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(services, server)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    return server


def _refusing(method):
    """Turns `Refused` into the status of the call."""

    @functools.wraps(method)
    async def guarded(self, request, context):
        try:
            if not request.HasField("model_spec"):
                raise invalid("Missing ModelSpec")
            return await method(self, request)
        except Refused as refused:
            await context.abort(refused.code, str(refused))

    return guarded


class _Services(
    prediction_service_pb2_grpc.PredictionServiceServicer,
    model_service_pb2_grpc.ModelServiceServicer,
):
    def __init__(self, predictor: Predictor, max_bytes: int):
        self._predictor = predictor
        self._max_bytes = max_bytes

    @_refusing
    async def Predict(self, request):
        spec, outputs = await self._predictor.predict(
            request.model_spec,
            lambda signature: signature.read(request.inputs, self._max_bytes),
            request.output_filter,
        )
        try:
            protos = {name: tensors.to_proto(array) for name, array in outputs.items()}
        except UserError as error:
            raise Refused(grpc.StatusCode.UNIMPLEMENTED, str(error)) from None
        return predict_pb2.PredictResponse(model_spec=spec, outputs=protos)

    @_refusing
    async def GetModelMetadata(self, request):
        if not request.metadata_field:
            raise invalid("GetModelMetadataRequest must specify at least one metadata_field")
        for field in request.metadata_field:
            if field != SIGNATURES:
                raise invalid(f"Metadata field {field[:100]} is not supported")
        spec, signatures = self._predictor.metadata(request.model_spec)
        response = get_model_metadata_pb2.GetModelMetadataResponse(model_spec=spec)
        response.metadata[SIGNATURES].Pack(signatures)
        return response

    @_refusing
    async def GetModelStatus(self, request):
        return self._predictor.models.status(request.model_spec)

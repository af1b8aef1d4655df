"""TF Serving's gRPC services, and the standard health service."""

import functools

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from serving import refusal, tensor_protos
from serving.prediction import Predictor
from serving.refusal import Refused
from serving.servables import Servables

SIGNATURES = "signature_def"  # the one field of metadata


def create(
    predictor: Predictor, health_servicer: health.aio.HealthServicer, max_bytes: int
) -> grpc.aio.Server:
    """A server that has no port yet."""
    options = [("grpc.max_receive_message_length", max_bytes), ("grpc.so_reuseport", 0)]
    server = grpc.aio.server(options=options)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        _PredictionService(predictor, max_bytes), server
    )
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(
        _ModelService(predictor.servables), server
    )
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    return server


def metadata(
    servables: Servables, spec: model_pb2.ModelSpec
) -> tuple[model_pb2.ModelSpec, get_model_metadata_pb2.SignatureDefMap]:
    """The signatures of a version, with its name and number."""
    servable = servables.find(spec)
    found = model_pb2.ModelSpec(name=servable.name)
    found.version.value = servable.version
    return found, get_model_metadata_pb2.SignatureDefMap(signature_def=servable.definitions)


def _refusing(method):
    """Turns `Refused` into the status of the call."""

    @functools.wraps(method)
    async def guarded(self, request, context):
        try:
            if not request.HasField("model_spec"):
                raise refusal.invalid("Missing ModelSpec")
            return await method(self, request, context)
        except Refused as refused:
            await context.abort(refused.code, str(refused))

    return guarded


class _PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, predictor: Predictor, max_bytes: int):
        self._predictor = predictor
        self._max_bytes = max_bytes

    @_refusing
    async def Predict(self, request, context):
        spec, outputs = await self._predictor.predict(
            request.model_spec,
            lambda signature: tensor_protos.read(signature, request.inputs, self._max_bytes),
            request.output_filter,
        )
        response = predict_pb2.PredictResponse(model_spec=spec)
        for name, array in outputs.items():
            response.outputs[name].CopyFrom(tensor_protos.write(array))
        return response

    @_refusing
    async def GetModelMetadata(self, request, context):
        if not request.metadata_field:
            raise refusal.invalid(
                "GetModelMetadataRequest must specify at least one metadata_field"
            )
        for field in request.metadata_field:
            if field != SIGNATURES:
                raise refusal.invalid(f"Metadata field {field[:100]} is not supported")
        spec, signatures = metadata(self._predictor.servables, request.model_spec)
        response = get_model_metadata_pb2.GetModelMetadataResponse(model_spec=spec)
        response.metadata[SIGNATURES].Pack(signatures)
        return response


class _ModelService(model_service_pb2_grpc.ModelServiceServicer):
    def __init__(self, servables: Servables):
        self._servables = servables

    @_refusing
    async def GetModelStatus(self, request, context) -> get_model_status_pb2.GetModelStatusResponse:
        return self._servables.status(request.model_spec)

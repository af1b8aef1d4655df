"""The messages of TF Serving's gRPC API, as far as a client needs them, without TensorFlow.

On the wire they are those of tensorflow/core/framework/tensor.proto and tensorflow_serving/apis.
They have a descriptor pool of their own, so that TensorFlow may be loaded beside them.
"""

import enum

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_MESSAGES = {  # for every field its number and type; an enum is an int32 on the wire
    "Dim": {"size": (1, "int64"), "name": (2, "string")},
    "TensorShapeProto": {"dim": (2, "repeated Dim"), "unknown_rank": (3, "bool")},
    "TensorProto": {
        "dtype": (1, "int32"),  # a DataType
        "tensor_shape": (2, "TensorShapeProto"),
        "version_number": (3, "int32"),
        "tensor_content": (4, "bytes"),
        "float_val": (5, "repeated float"),
        "double_val": (6, "repeated double"),
        "int_val": (7, "repeated int32"),
        "string_val": (8, "repeated bytes"),
        "scomplex_val": (9, "repeated float"),
        "int64_val": (10, "repeated int64"),
        "bool_val": (11, "repeated bool"),
        "dcomplex_val": (12, "repeated double"),
        "half_val": (13, "repeated int32"),
        "uint32_val": (16, "repeated uint32"),
        "uint64_val": (17, "repeated uint64"),
        "float8_val": (18, "bytes"),
    },
    "Int64Value": {"value": (1, "int64")},
    "ModelSpec": {
        "name": (1, "string"),
        "version": (2, "oneof Int64Value"),
        "signature_name": (3, "string"),
        "version_label": (4, "oneof string"),
    },
    "PredictRequest": {
        "model_spec": (1, "ModelSpec"),
        "inputs": (2, "map TensorProto"),
        "output_filter": (3, "repeated string"),
    },
    "PredictResponse": {"outputs": (1, "map TensorProto"), "model_spec": (2, "ModelSpec")},
    "GetModelStatusRequest": {"model_spec": (1, "ModelSpec")},
    "StatusProto": {"error_code": (1, "int32"), "error_message": (2, "string")},
    "ModelVersionStatus": {
        "version": (1, "int64"),
        "state": (2, "int32"),  # a State
        "status": (3, "StatusProto"),
    },
    "GetModelStatusResponse": {"model_version_status": (1, "repeated ModelVersionStatus")},
    "HealthCheckRequest": {"service": (1, "string")},
    "HealthCheckResponse": {"status": (1, "int32")},
}
NOT_SERVING = 2  # a status of health


def _add_fields(
    message: descriptor_pb2.DescriptorProto, fields: dict[str, tuple[int, str]]
) -> None:
    for name, (number, kind) in fields.items():
        *rule, kind = kind.split()
        field = message.field.add(name=name, number=number, label="LABEL_OPTIONAL")
        if rule in (["repeated"], ["map"]):
            field.label = field.LABEL_REPEATED
        if rule == ["map"]:  # from strings
            entry = message.nested_type.add(name=f"{name.title()}Entry")
            entry.options.map_entry = True
            _add_fields(entry, {"key": (1, "string"), "value": (2, kind)})
            kind = f"{message.name}.{entry.name}"
        if rule == ["oneof"]:
            field.oneof_index = 0
            if not message.oneof_decl:
                message.oneof_decl.add(name="choice")
        if kind[0].isupper():
            field.type, field.type_name = field.TYPE_MESSAGE, f".{kind}"
        else:
            field.type = field.Type.Value(f"TYPE_{kind.upper()}")


_FILE = descriptor_pb2.FileDescriptorProto(name="serving/messages.py", syntax="proto3")
for _name, _fields in _MESSAGES.items():
    _add_fields(_FILE.message_type.add(name=_name), _fields)
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_FILE)
_CLASSES = message_factory.GetMessageClassesForFiles([_FILE.name], _POOL)

TensorProto = _CLASSES["TensorProto"]
ModelSpec = _CLASSES["ModelSpec"]
PredictRequest = _CLASSES["PredictRequest"]
PredictResponse = _CLASSES["PredictResponse"]
GetModelStatusRequest = _CLASSES["GetModelStatusRequest"]
GetModelStatusResponse = _CLASSES["GetModelStatusResponse"]
HealthCheckRequest = _CLASSES["HealthCheckRequest"]
HealthCheckResponse = _CLASSES["HealthCheckResponse"]

DataType = enum.IntEnum(
    "DataType",
    "DT_INVALID DT_FLOAT DT_DOUBLE DT_INT32 DT_UINT8 DT_INT16 DT_INT8 DT_STRING DT_COMPLEX64 "
    "DT_INT64 DT_BOOL DT_QINT8 DT_QUINT8 DT_QINT32 DT_BFLOAT16 DT_QINT16 DT_QUINT16 DT_UINT16 "
    "DT_COMPLEX128 DT_HALF DT_RESOURCE DT_VARIANT DT_UINT32 DT_UINT64",
    start=0,
)


class State(enum.IntEnum):
    """What a server is doing with a version of a model."""

    UNKNOWN = 0
    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


def state_name(number: int) -> str:
    return {state: state.name for state in State}.get(number, f"state {number}")


def predict(channel: grpc.Channel) -> grpc.UnaryUnaryMultiCallable:
    """The method that runs a signature."""
    return channel.unary_unary(
        "/tensorflow.serving.PredictionService/Predict",
        request_serializer=PredictRequest.SerializeToString,
        response_deserializer=PredictResponse.FromString,
    )


def get_model_status(channel: grpc.Channel) -> grpc.UnaryUnaryMultiCallable:
    """The method that lists the versions of a model."""
    return channel.unary_unary(
        "/tensorflow.serving.ModelService/GetModelStatus",
        request_serializer=GetModelStatusRequest.SerializeToString,
        response_deserializer=GetModelStatusResponse.FromString,
    )


def check_health(channel: grpc.Channel) -> grpc.UnaryUnaryMultiCallable:
    """The method that tells whether a server is ready, of the standard health service."""
    return channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=HealthCheckRequest.SerializeToString,
        response_deserializer=HealthCheckResponse.FromString,
    )

"""The messages of TF Serving's gRPC API, imported without TensorFlow.

The generated classes import others that lie inside the package `tensorflow`, and thereby run all of
it, which costs a client seconds at its start for a dozen message types.
"""

import contextlib
import importlib.util
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def _tensorflow_found_but_not_run() -> Iterator[None]:
    spec = importlib.util.find_spec("tensorflow") if "tensorflow" not in sys.modules else None
    if spec is None:
        yield
        return
    sys.modules["tensorflow"] = importlib.util.module_from_spec(spec)
    try:
        yield
    finally:
        # A later `import tensorflow` begins anew, and meets the same message classes.
        for name in [name for name in sys.modules if name.split(".")[0] == "tensorflow"]:
            del sys.modules[name]


with _tensorflow_found_but_not_run():
    from tensorflow.core.framework import tensor_pb2, types_pb2
    from tensorflow_serving.apis import (
        get_model_status_pb2,
        model_pb2,
        model_service_pb2_grpc,
        predict_pb2,
        prediction_service_pb2_grpc,
    )

DataType, TensorProto = types_pb2.DataType, tensor_pb2.TensorProto
ModelSpec, PredictRequest = model_pb2.ModelSpec, predict_pb2.PredictRequest
GetModelStatusRequest = get_model_status_pb2.GetModelStatusRequest
ModelVersionStatus = get_model_status_pb2.ModelVersionStatus
ModelServiceStub = model_service_pb2_grpc.ModelServiceStub
PredictionServiceStub = prediction_service_pb2_grpc.PredictionServiceStub

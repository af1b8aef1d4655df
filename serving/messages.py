"""The messages of TF Serving's gRPC API, imported without TensorFlow.

The generated classes import others that lie inside the package `tensorflow`, and thereby run all of
it, which costs a client seconds at its start for a dozen message types.
"""

# ruff: noqa: E402, F401

import importlib.util
import sys

_is_loaded = "tensorflow" in sys.modules
if not _is_loaded:  # in its place a module that is found, but not run
    _spec = importlib.util.find_spec("tensorflow")
    sys.modules["tensorflow"] = importlib.util.module_from_spec(_spec)

from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow.core.framework.types_pb2 import DataType
from tensorflow_serving.apis.get_model_status_pb2 import GetModelStatusRequest, ModelVersionStatus
from tensorflow_serving.apis.model_pb2 import ModelSpec
from tensorflow_serving.apis.model_service_pb2_grpc import ModelServiceStub
from tensorflow_serving.apis.predict_pb2 import PredictRequest
from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

if not _is_loaded:
    # A later `import tensorflow` begins anew, and meets the same message classes.
    for _name in [name for name in sys.modules if name.split(".")[0] == "tensorflow"]:
        del sys.modules[_name]

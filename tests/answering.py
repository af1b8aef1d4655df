"""A gRPC server on the loopback that has the signatures of the real one and checks what it gets.

Its answers are simple functions of the inputs: features are the size of the decoded image and the
colour of its first pixel, captions name them.
"""

import contextlib
import io
import time
from collections.abc import Callable
from concurrent import futures

import grpc
import numpy as np
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from PIL import Image
from tensorflow_serving.apis import (
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from mrnn_tf import schema

FEATURE_SIZE = 3
VERSION, LABEL = 7, "stable"
_TEXT, _PHOTO, _NUMBERS = ((np.object_, 1), (np.object_, 1), (np.float32, 2))
TAKES = {
    (schema.MODEL, schema.CAPTION): {schema.IMAGE_BYTES: _PHOTO},
    (schema.MODEL, schema.ENCODE_IMAGE): {schema.IMAGE_BYTES: _PHOTO},
    (schema.MODEL, schema.BEAM_DECODE): {schema.FEATURES: _NUMBERS, schema.PREFIX: _TEXT},
    (schema.MODEL, schema.NEXT_WORD): {schema.FEATURES: _NUMBERS, schema.PREFIX: _TEXT},
    (schema.MODEL, schema.SENTENCE_LOG_PROB): {schema.FEATURES: _NUMBERS, schema.SENTENCES: _TEXT},
    (schema.INDEX, schema.SEARCH_IMAGES): {schema.SENTENCES: _TEXT},
    (schema.INDEX, schema.SEARCH_PREFIX): {schema.PREFIX: _TEXT},
    (schema.INDEX, schema.SEARCH_SENTENCES): {schema.FEATURES: _NUMBERS},
    (schema.INDEX, schema.SIMILAR_IMAGES): {schema.FEATURES: _NUMBERS},
    (schema.INDEX, schema.CAPTION_RERANKED): {schema.FEATURES: _NUMBERS},
    (schema.MODEL, schema.MODEL_INFO): {schema.KEYS: _TEXT},
    (schema.INDEX, schema.MODEL_INFO): {schema.KEYS: _TEXT},
}


class Answering(
    prediction_service_pb2_grpc.PredictionServiceServicer,
    model_service_pb2_grpc.ModelServiceServicer,
    health_pb2_grpc.HealthServicer,
):
    """Attributes: what the test sets before it asks, and `asked`, what came."""

    def __init__(self):
        self.address = ""
        self.asked: list[tuple[str, int]] = []  # signature and number of rows
        self.refusals: list[tuple[grpc.StatusCode, str]] = []
        self.missing: set[str] = set()  # signatures or servables
        self.delay = 0.0
        self.loading = 0  # questions after which the model and the index are loaded
        self.unready = 0  # likewise, while no version is known
        self.change: Callable[[predict_pb2.PredictResponse], None] = lambda _: None
        self.refined_size = 2
        self.rolling: dict[str, int] = {}  # the version that answers a signature, unless pinned

    def Predict(self, request, context):
        spec = request.model_spec
        inputs = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
        self.asked.append((spec.signature_name, len(next(iter(inputs.values())))))
        time.sleep(self.delay)
        if self.refusals:
            context.abort(*self.refusals.pop(0))
        self._find(spec, context)
        version = spec.version.value or self.rolling.get(spec.signature_name, VERSION)
        takes = TAKES.get((spec.name, spec.signature_name))
        if takes is None or spec.signature_name in self.missing:
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f'Serving signature key "{spec.signature_name}" not found.',
            )
        got = {name: (array.dtype.type, array.ndim) for name, array in inputs.items()}
        if got != takes:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"wants {takes}, got {got}")
        if inputs.get(schema.FEATURES, np.zeros([1, FEATURE_SIZE])).shape[1] != FEATURE_SIZE:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"features must be [?, {FEATURE_SIZE}]")
        self.version = version
        outputs = getattr(self, f"_{spec.signature_name}")(**inputs)
        spec.version.value = version
        response = predict_pb2.PredictResponse(
            model_spec=spec,
            outputs={name: tf.make_tensor_proto(value) for name, value in outputs.items()},
        )
        self.change(response)
        return response

    def GetModelStatus(self, request, context):
        self._find(request.model_spec, context)
        response = get_model_status_pb2.GetModelStatusResponse()
        state = "LOADING" if self.loading else "AVAILABLE"
        response.model_version_status.add(version=VERSION, state=state)
        return response

    def Check(self, request, context):
        status = health_pb2.HealthCheckResponse.ServingStatus
        is_ready = not self.unready and not self.loading
        chosen = status.SERVING if is_ready else status.NOT_SERVING
        return health_pb2.HealthCheckResponse(status=chosen)

    def _find(self, spec, context):
        known = not spec.HasField("version_choice") or (
            spec.version.value in (VERSION, *self.rolling.values()) or spec.version_label == LABEL
        )
        if spec.signature_name and self.loading:
            self.loading -= 1
            known = False
        if self.unready:
            self.unready -= 1
            known = False
        if spec.name in self.missing or not known:
            wanted = f"{spec.name}, {spec.version.value or spec.version_label}"
            context.abort(grpc.StatusCode.NOT_FOUND, f"Servable not found: Specific({wanted})")

    def _encode_image(self, image_bytes):
        features = [list(describe(content) or (0, 0, 0)) for content in image_bytes]
        return {
            schema.FEATURES: np.array(features, np.float32),
            schema.REFINED: np.ones([len(features), self.refined_size], np.float32),
        }

    def _caption(self, image_bytes):
        seen = [describe(content) for content in image_bytes]
        captions = [[f"a {s[0]} by {s[1]} photo", ""] if s else ["", ""] for s in seen]
        log_probs = [
            [-1.5 if s else schema.MISSING_LOG_PROB, schema.MISSING_LOG_PROB] for s in seen
        ]
        return {schema.CAPTIONS: captions, schema.LOG_PROBS: np.float32(log_probs)}

    def _beam_decode(self, features, prefix):
        rows = len(prefix)
        return {
            schema.CAPTIONS: [[p.decode() + " runs", ""] for p in prefix],
            schema.LOG_PROBS: np.float32([[-f[0], schema.MISSING_LOG_PROB] for f in features]),
            schema.WORDS: [[["runs", "</s>", ""], ["", "", ""]]] * rows,
            schema.WORD_LOG_PROBS: np.float32([[[-1, -2, 0], [0, 0, 0]]] * rows),
            schema.WORD_EVIDENCE: np.float32([[[0.5, 0, 0], [0, 0, 0]]] * rows),
        }

    def _next_word(self, features, prefix):
        words = [[p.decode().split()[-1] if p else "</s>", "größe"] for p in prefix]
        return {schema.WORDS: words, schema.LOG_PROBS: np.float32([[-0.5, -1]] * len(prefix))}

    def _sentence_log_prob(self, features, sentences):
        counts = np.int32([len(s.split()) + 1 for s in sentences])
        counts[counts > 201] = 0
        return {
            schema.LOG_PROB: -features[:, 0],
            schema.PERPLEXITY: np.exp(features[:, 0] / np.maximum(counts, 1)),
            schema.NUM_WORDS: counts,
            schema.NUM_UNKNOWN: np.int32([s.split().count(b"zyx") for s in sentences]),
            schema.WORD_LOG_PROBS: np.float32([[-1] * n + [0] * (max(counts) - n) for n in counts]),
        }

    def _search_images(self, sentences):
        missing = schema.MISSING_LOG_PROB
        return {
            schema.IDS: [[s.decode() + ".jpg", ""] for s in sentences],
            schema.SCORES: np.float32([[2.5, missing]] * len(sentences)),
        }

    def _search_prefix(self, prefix):
        words = np.float32([[[-1.5, -1, 0], [0, 0, 0]]] * len(prefix))
        return {**self._search_images(prefix), schema.WORD_SCORES: words}

    def _search_sentences(self, features):
        return {
            schema.SENTENCES: [[f"{int(f[0])} wide", "other"] for f in features],
            schema.IDS: [["one.jpg", "two.jpg"]] * len(features),
            schema.SCORES: np.float32([[3, 1]] * len(features)),
        }

    def _similar_images(self, features):
        return {
            schema.IDS: [[f"{int(f[0])}.jpg", ""] for f in features],
            schema.SCORES: np.float32([[-0.5, schema.MISSING_LOG_PROB]] * len(features)),
        }

    def _caption_reranked(self, features):
        missing = schema.MISSING_LOG_PROB
        return {
            schema.CAPTIONS: [[f"{int(f[0])} wide", "a dog", ""] for f in features],
            schema.LOG_PROBS: np.float32([[-3, -2, missing]] * len(features)),
            schema.CONSENSUS: np.float32([[1.5, 1, missing]] * len(features)),
        }

    def _model_info(self, keys):
        return {schema.VALUES: [b"%s of %d" % (key, self.version) for key in keys]}


def describe(content: bytes) -> tuple[int, int, int] | None:
    """Width, height and redness of the first pixel, as they are stored, unrotated."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            return (*image.size, image.convert("RGB").getpixel((0, 0))[0])
    except OSError:
        return None


@contextlib.contextmanager
def answering(credentials: grpc.ServerCredentials | None = None, port: int = 0):
    """Starts the server, by default on a free port."""
    servicer = Answering()
    server = grpc.server(
        futures.ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", -1)]
    )
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(servicer, server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(servicer, server)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    if credentials is None:
        port = server.add_insecure_port(f"127.0.0.1:{port}")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    servicer.address = f"127.0.0.1:{port}"
    server.start()
    try:
        yield servicer
    finally:
        server.stop(None).wait()

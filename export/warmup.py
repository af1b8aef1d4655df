"""Example requests of every signature: for a server's warm-up and for the check of an export."""

import io
from collections.abc import Collection, Iterable
from typing import Protocol

import numpy as np
import tensorflow as tf
from PIL import Image
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from mrnn_tf import schema
from mrnn_tf.data import records
from mrnn_tf.model_info import ModelInfo
from mrnn_tf.run import Network

BATCH_SIZES = (1, 4, 16)
_KEYS = (schema.MODEL_FINGERPRINT, schema.ENCODER_IDENTITY, "no such key", schema.SETTINGS)
# The third takes the tokeniser's way for texts beyond ASCII.
_SENTENCES = ("A man rides a horse.", "", "two dogs at a caf\u00e9", "zxqv in the snow")

Call = tuple[str, dict[str, np.ndarray]]  # a signature and its inputs


class Exportable(Protocol):
    """What is exported and served under a name."""

    name: str
    default: str  # the signature that is served by default
    network: Network
    info: ModelInfo  # what it says of itself

    def signatures(self) -> dict[str, tf.types.experimental.ConcreteFunction]:
        """The functions that the SavedModel offers, by name."""

    def tracked(self) -> tf.Module:
        """What a SavedModel must own."""


def calls(servable: Exportable, rows: int, names: Collection[str]) -> list[Call]:
    """A call with this many rows for every named signature."""
    mean = servable.network.mean_features.numpy()
    features = np.random.default_rng(0).random((rows, len(mean)), np.float32) * (mean + 1e-3)
    texts = np.array([_SENTENCES[row % len(_SENTENCES)] for row in range(rows)], object)
    pictures = [_picture(row) for row in range(rows)]
    examples = [
        records.serialize(str(row), encoded=pictures[row])
        if servable.default == schema.CAPTION and row % 2
        else records.serialize(str(row), features=features[row])
        for row in range(rows)
    ]
    known = {
        schema.FEATURES: features,
        schema.PREFIX: np.array([" ".join(text.split()[:2]) for text in texts], object),
        schema.SENTENCES: texts,
        schema.IMAGE_BYTES: np.array(pictures, object),
        schema.EXAMPLES: np.array(examples, object),
        schema.PROJECTIONS: _projections(servable, features, names),
        schema.KEYS: np.array([_KEYS[row % len(_KEYS)] for row in range(rows)], object),
    }
    inputs = {
        schema.BEAM_DECODE: (schema.FEATURES, schema.PREFIX),
        schema.NEXT_WORD: (schema.FEATURES, schema.PREFIX),
        schema.SENTENCE_LOG_PROB: (schema.FEATURES, schema.SENTENCES),
        schema.SENTENCE_VECTOR: (schema.SENTENCES,),
        schema.SCORE_IMAGES: (schema.FEATURES, schema.SENTENCES),
        schema.SCORE_PROJECTIONS: (schema.PROJECTIONS, schema.SENTENCES),
        schema.CAPTION: (schema.IMAGE_BYTES,),
        schema.ENCODE_IMAGE: (schema.IMAGE_BYTES,),
        schema.CAPTION_EXAMPLES: (schema.EXAMPLES,),
        schema.SEARCH_IMAGES: (schema.SENTENCES,),
        schema.SEARCH_IMAGES_EXACT: (schema.SENTENCES,),
        schema.SEARCH_PREFIX: (schema.PREFIX,),
        schema.SEARCH_SENTENCES: (schema.FEATURES,),
        schema.SIMILAR_IMAGES: (schema.FEATURES,),
        schema.CAPTION_RERANKED: (schema.FEATURES,),
        schema.MODEL_INFO: (schema.KEYS,),
    }
    inputs[schema.SERVING_DEFAULT] = inputs[servable.default]
    return [(name, {each: known[each] for each in inputs[name]}) for name in names]


def write(path: str, servable: Exportable, names: Iterable[str]) -> None:
    """Writes the requests as TF Serving reads them."""
    names = list(names)
    with tf.io.TFRecordWriter(path) as writer:
        for rows in BATCH_SIZES:
            for signature, inputs in calls(servable, rows, names):
                request = predict_pb2.PredictRequest()
                request.model_spec.name = servable.name
                request.model_spec.signature_name = signature
                for name, value in inputs.items():
                    request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
                log = prediction_log_pb2.PredictLog(request=request)
                logged = prediction_log_pb2.PredictionLog(predict_log=log)
                writer.write(logged.SerializeToString(deterministic=True))


def _picture(number: int) -> bytes:
    """A picture as a JPEG or, every other one, as a PNG of another size."""
    rng = np.random.default_rng(number)
    pixels = rng.integers(0, 256, (6, 8, 3), np.uint8)
    picture = Image.fromarray(pixels).resize((160 + 16 * (number % 3), 120), Image.BICUBIC)
    content = io.BytesIO()
    picture.save(content, "PNG" if number % 2 else "JPEG")
    return content.getvalue()


def _projections(
    servable: Exportable, features: np.ndarray, names: Collection[str]
) -> np.ndarray | None:
    """Images as `score_projections` takes them; `None` where it is not among the signatures."""
    if schema.SCORE_PROJECTIONS not in names:
        return None
    return servable.network.model.project_image(features)["multimodal"].numpy()

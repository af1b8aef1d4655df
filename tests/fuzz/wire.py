"""What comes over the wire: bodies of REST requests, messages of gRPC in both directions."""

import json
from pathlib import Path

import numpy as np
import served
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow_serving.apis import predict_pb2

from fuzz.engine import Case, Parser
from mrnn_tf.errors import UserError
from serving import json_tensors, messages, rest_api, tensors
from serving.served_version import Refused, ServedSignature, from_proto

_INPUTS = {
    "double": {"x": np.zeros((1, 4), np.float32)},
    "count": {"x": np.zeros(2, np.int32)},
    "greet": {"text": np.array([b"dog", b"cat"], np.object_), "scale": np.ones((2, 2), np.float32)},
    "sums": {"x": np.ones((2, 3), np.int64)},
}
_ROWS = {
    "captions": np.array([[b"a dog", b"a cat", b""]], np.object_),
    "log_probs": np.array([[-7.1, -8.5, -3.4e38]], np.float32),
}
_BEAM = _ROWS | {
    "words": np.array([[[b"a", b"dog"], [b"a", b"cat"], [b"", b""]]], np.object_),
    "word_log_probs": np.full((1, 3, 2), -1, np.float32),
    "word_evidence": np.zeros((1, 3, 2), np.float32),
}
_SCORES = {
    "log_prob": np.array([-7.1], np.float32),
    "perplexity": np.array([9.5], np.float32),
    "num_words": np.array([3], np.int32),
    "num_unknown": np.array([0], np.int32),
    "word_log_probs": np.array([[-1, -2, -4, 0]], np.float32),
}


def _signatures(path: Path) -> dict[str, ServedSignature]:
    loaded = tf.saved_model.load(str(served.write(path, 1, warm_up=False)))
    return {name: ServedSignature.load("toy", name, loaded.signatures[name]) for name in _INPUTS}


def _bodies(path: Path) -> Parser:
    """Bodies of REST requests, from bytes to the arrays of a signature, and back."""
    signatures, seeds = _signatures(path), []
    for name, inputs in _INPUTS.items():
        columns = {key: tensors.to_python(array) for key, array in inputs.items()}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        for body in ({"inputs": columns}, {"instances": rows}):
            seeds.append((f"{name}.json", json.dumps({"signature_name": name, **body}).encode()))
    b64 = {"instances": [{"text": {"b64": "ZG9n"}, "scale": [1, 2.5]}]}
    seeds.append(("b64.json", json.dumps({"signature_name": "greet", **b64}).encode()))

    def parse(case: Case) -> None:
        body = rest_api._parse(case.content)
        layout = json_tensors.layout(body)
        name = body.get("signature_name")
        signature = signatures.get(name if isinstance(name, str) else "", signatures["greet"])
        inputs = json_tensors.read(signature, body)
        json.dumps(json_tensors.write(inputs, layout))
        signature.rows(inputs)

    return Parser(seeds, parse, refuses=(Refused,), share=40)


def _requests(path: Path) -> Parser:
    """Requests to predict, from bytes to the arrays of a signature."""
    signatures = _signatures(path)
    seeds = [
        (f"{name}.pb", served.predict_request(name, inputs, version=1).SerializeToString())
        for name, inputs in _INPUTS.items()
    ]

    def parse(case: Case) -> None:
        request = predict_pb2.PredictRequest.FromString(case.content)
        signature = signatures.get(request.model_spec.signature_name, signatures["greet"])
        signature.choose(request.output_filter)
        signature.rows(signature.read(request.inputs, from_proto))

    return Parser(seeds, parse, refuses=(Refused, DecodeError), share=40)


def _answers(_: Path) -> Parser:
    """Answers of a server to the client, from bytes to what it prints."""
    seeds = []
    for name, outputs in {"caption": _ROWS, "beam": _BEAM, "score": _SCORES}.items():
        protos = {key: tensors.to_proto(array) for key, array in outputs.items()}
        spec = messages.ModelSpec(name="mrnn", signature_name=name, version={"value": 3})
        answer = messages.PredictResponse(outputs=protos, model_spec=spec)
        seeds.append((f"{name}.pb", answer.SerializeToString(deterministic=True)))

    def parse(case: Case) -> None:
        response = messages.PredictResponse.FromString(case.content)
        for proto in response.outputs.values():
            tensors.to_python(tensors.to_array(proto, 1 << 24))

    return Parser(seeds, parse, refuses=(UserError, DecodeError), share=40)


PARSERS = {"REST bodies": _bodies, "gRPC requests": _requests, "gRPC answers": _answers}

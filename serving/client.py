"""Asks a server, TF Serving or serving.local, for captions, scores and searches.

Examples:

    python -m serving.client caption photo.jpg other.jpg
    python -m serving.client beam photo.jpg "a dog"
    python -m serving.client score photo.jpg "a dog runs on grass" "a cat"
    python -m serving.client next photo.jpg "a dog"
    python -m serving.client encode photo.jpg --json
    python -m serving.client search "a dog on grass"
    python -m serving.client sentences photo.jpg
    python -m serving.client similar photo.jpg
    python -m serving.client rerank photo.jpg
    python -m serving.client status

A `.npy` file of features [D] may stand wherever a photo does. Exit code 1 where anything failed.
"""

import random
import re
import time
from collections.abc import Callable, Sequence

import grpc
import numpy as np

from mrnn_tf import schema
from serving import tensors
from serving.messages import (
    GetModelStatusRequest,
    GetModelStatusResponse,
    ModelSpec,
    ModelVersionStatus,
    PredictRequest,
    PredictResponse,
)

Images = Sequence[bytes] | np.ndarray
Row = dict[str, list | float | int | str]

_FIRST_PAUSE = 0.2  # seconds before the first retry; twice as long before each that follows
_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", int(1000 * _FIRST_PAUSE)),
    # Where a name has several addresses, as a headless service has, use all of them.
    ("grpc.lb_policy_name", "round_robin"),
]


class ServingError(RuntimeError):
    """What a server did not do, in one sentence."""

    def __init__(self, sentence: str, code: grpc.StatusCode):
        super().__init__(sentence)
        self.code = code


class Client:
    """A connection to the servables `mrnn` and `mrnn_index` of one server.

    Args:
        server: str. Host and port.
        timeout: float. Seconds for one call, its retries included.
        retries: int. How often a call is made again while the server is unavailable.
        versions: dict. For a servable its version, an int, or the label of one, a str.
        credentials: grpc.ChannelCredentials. TLS; without them nothing is encrypted.

    Images are given as a list of the bytes of photos, or as an array of features [B, D]. Answers
    are one dictionary per input, by the names of the signature's tensors; sentences and words that
    stand for none are left out.

    Example:

        with Client("127.0.0.1:8500") as client:
            [answer] = client.caption([open("photo.jpg", "rb").read()])
            print(answer["captions"][0], answer["log_probs"][0])
    """

    def __init__(
        self,
        server: str = "127.0.0.1:8500",
        *,
        timeout: float = 30.0,
        retries: int = 3,
        versions: dict[str, int | str] | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ):
        self.server = server
        self.timeout = timeout
        self.retries = retries
        self.versions = versions or {}
        if credentials is None:
            self._channel = grpc.insecure_channel(server, _CHANNEL_OPTIONS)
        else:
            self._channel = grpc.secure_channel(server, credentials, _CHANNEL_OPTIONS)
        self._predict = self._channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict",
            PredictRequest.SerializeToString,
            PredictResponse.FromString,
        )
        self._model_status = self._channel.unary_unary(
            "/tensorflow.serving.ModelService/GetModelStatus",
            GetModelStatusRequest.SerializeToString,
            GetModelStatusResponse.FromString,
        )

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def caption(self, images: Images) -> list[Row]:
        """The best `captions` of each image and their `log_probs`."""
        if not isinstance(images, np.ndarray):
            inputs = {schema.IMAGE_BYTES: _bytes(images)}
            return _rows(self.predict(schema.MODEL, schema.CAPTION, inputs))
        wanted = (schema.CAPTIONS, schema.LOG_PROBS)
        return [{name: row[name] for name in wanted} for row in self.beam(images)]

    def beam(self, images: Images, prefixes: Sequence[str] | None = None) -> list[Row]:
        """`captions` that begin with the prefixes, with `words` and what each was worth."""
        inputs = {
            schema.FEATURES: self._features(images),
            schema.PREFIX: _texts(prefixes or [""] * len(images)),
        }
        return _rows(self.predict(schema.MODEL, schema.BEAM_DECODE, inputs))

    def next_words(self, images: Images, prefixes: Sequence[str]) -> list[Row]:
        """The likeliest `words` after each prefix and their `log_probs`."""
        inputs = {schema.FEATURES: self._features(images), schema.PREFIX: _texts(prefixes)}
        return _rows(self.predict(schema.MODEL, schema.NEXT_WORD, inputs))

    def score(self, images: Images, sentences: Sequence[str]) -> list[Row]:
        """`log_prob`, `perplexity` and more of each sentence, given its image."""
        inputs = {schema.FEATURES: self._features(images), schema.SENTENCES: _texts(sentences)}
        return _rows(self.predict(schema.MODEL, schema.SENTENCE_LOG_PROB, inputs))

    def encode(self, photos: Sequence[bytes]) -> dict[str, np.ndarray]:
        """`features` [B, D] and `refined` features [B, M]."""
        inputs = {schema.IMAGE_BYTES: _bytes(photos)}
        return self.predict(schema.MODEL, schema.ENCODE_IMAGE, inputs)

    def search_images(self, sentences: Sequence[str]) -> list[Row]:
        """The `ids` of the images that fit each sentence best, with `scores`."""
        inputs = {schema.SENTENCES: _texts(sentences)}
        return _rows(self.predict(schema.INDEX, schema.SEARCH_IMAGES, inputs))

    def search_sentences(self, images: Images) -> list[Row]:
        """The indexed `sentences` that fit each image best, with `ids` and `scores`."""
        inputs = {schema.FEATURES: self._features(images)}
        return _rows(self.predict(schema.INDEX, schema.SEARCH_SENTENCES, inputs))

    def similar_images(self, images: Images) -> list[Row]:
        """The `ids` of the indexed images that are most like each image, with `scores`."""
        inputs = {schema.FEATURES: self._features(images)}
        return _rows(self.predict(schema.INDEX, schema.SIMILAR_IMAGES, inputs))

    def caption_reranked(self, images: Images) -> list[Row]:
        """`captions` by their `consensus` with those of similar images, and their `log_probs`."""
        inputs = {schema.FEATURES: self._features(images)}
        return _rows(self.predict(schema.INDEX, schema.CAPTION_RERANKED, inputs))

    def predict(
        self, model: str, signature: str, inputs: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The outputs of any signature of a servable; strings are bytes."""
        request = PredictRequest(model_spec=self._spec(model))
        request.model_spec.signature_name = signature
        for name, array in inputs.items():
            request.inputs[name].CopyFrom(tensors.to_proto(array))
        response = self._call(self._predict, request)
        return {name: tensors.to_array(proto) for name, proto in response.outputs.items()}

    def status(self) -> dict[str, dict[int, str]]:
        """For every servable its versions and their states; none where it is not served."""
        states = {}
        for model in (schema.MODEL, schema.INDEX):
            request = GetModelStatusRequest(model_spec=ModelSpec(name=model))
            try:
                answer = self._call(self._model_status, request)
            except ServingError as error:
                if error.code is not grpc.StatusCode.NOT_FOUND:
                    raise
                states[model] = {}
                continue
            states[model] = {
                each.version: ModelVersionStatus.State.Name(each.state)
                for each in answer.model_version_status
            }
        return states

    def _features(self, images: Images) -> np.ndarray:
        if isinstance(images, np.ndarray):
            return images
        return self.encode(images)[schema.FEATURES]

    def _spec(self, model: str) -> ModelSpec:
        spec = ModelSpec(name=model)
        version = self.versions.get(model)
        if isinstance(version, str):
            spec.version_label = version
        elif version is not None:
            spec.version.value = version
        return spec

    def _call(self, method: Callable, request: PredictRequest | GetModelStatusRequest):
        deadline = time.monotonic() + self.timeout
        attempt = 0
        while True:
            try:
                return method(request, timeout=deadline - time.monotonic())
            except grpc.RpcError as error:
                pause = _FIRST_PAUSE * 2**attempt * random.uniform(0.8, 1.2)
                last = attempt >= self.retries or time.monotonic() + pause >= deadline
                if error.code() is not grpc.StatusCode.UNAVAILABLE or last:
                    raise self._explained(error, request.model_spec) from None
            time.sleep(pause)
            attempt += 1

    def _explained(self, error: grpc.RpcError, spec: ModelSpec) -> ServingError:
        code, details = error.code(), " ".join((error.details() or "").split())
        signature = spec.signature_name
        pinned = self.versions.get(spec.name)
        model = spec.name if pinned is None else f"{spec.name} (version {pinned})"
        if code is grpc.StatusCode.UNAVAILABLE:
            sentence = f"no server answers at {self.server}: {details}"
        elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
            asked = f"{signature} of {model}" if signature else f"the status of {model}"
            sentence = (
                f"{self.server} did not answer {asked} within the timeout of {self.timeout:g} s; "
                "allow more, or send smaller batches."
            )
        elif re.search(r"signature\b.*\bnot found", details, re.IGNORECASE):
            sentence = f"{model} at {self.server} has no signature {signature}; "
            if signature in (schema.CAPTION, schema.ENCODE_IMAGE):
                sentence += (
                    "it was exported without an image encoder: give features (.npy) instead of "
                    "photos, or export it with --encoder."
                )
            elif signature == schema.CAPTION_RERANKED:
                sentence += "it holds no captioned image, or is older: make it again."
            else:
                sentence += "it is an older model: export it again."
        elif code is grpc.StatusCode.NOT_FOUND:
            sentence = f"{self.server} does not serve {model}: {details}"
        else:
            asked = signature or "the status"
            sentence = f"{self.server} refused {asked} of {model}: {details or code.name}"
        return ServingError(sentence, code)


def _bytes(photos: Sequence[bytes]) -> np.ndarray:
    # Not by np.array(photos), which drops zero bytes at the end.
    return np.fromiter(photos, np.object_, len(photos))


def _texts(texts: Sequence[str]) -> np.ndarray:
    return np.fromiter((text.encode() for text in texts), np.object_, len(texts))


def _rows(outputs: dict[str, np.ndarray]) -> list[Row]:
    """One dictionary per input, of plain Python values, without what stands for nothing."""
    size = len(next(iter(outputs.values())))
    return [_row({name: array[row] for name, array in outputs.items()}) for row in range(size)]


def _row(outputs: dict[str, np.ndarray]) -> Row:
    ranks = outputs.get(schema.LOG_PROBS, outputs.get(schema.SCORES))
    if ranks is None:
        row = {name: _plain(array) for name, array in outputs.items()}
        row[schema.WORD_LOG_PROBS] = row[schema.WORD_LOG_PROBS][: row[schema.NUM_WORDS]]
        return row
    kept = ranks > np.float32(schema.MISSING_LOG_PROB)
    row = {name: _plain(array[kept]) for name, array in outputs.items()}
    if schema.WORD_LOG_PROBS in row:
        lengths = [sum(word != "" for word in words) for words in row[schema.WORDS]]
        for name in row.keys() & {schema.WORDS, schema.WORD_LOG_PROBS, schema.WORD_EVIDENCE}:
            row[name] = [each[:end] for each, end in zip(row[name], lengths, strict=True)]
    return row


def _plain(array: np.ndarray) -> list | float | int | str:
    if array.dtype == np.object_:
        array = np.vectorize(lambda value: value.decode(errors="replace"), [np.object_])(array)
    return array.tolist()


if __name__ == "__main__":
    from absl import flags

    from serving import commands  # not above: it defines flags

    flags.adopt_module_key_flags(commands)
    commands.run()

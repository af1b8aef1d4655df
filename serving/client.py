"""Asks a server, TF Serving or serving.local, for captions, scores and searches.

Examples:

    python -m serving.client caption photo.jpg other.jpg
    python -m serving.client beam photo.jpg "a dog"
    python -m serving.client score photo.jpg "a dog runs on grass" "a cat"
    python -m serving.client next photo.jpg "a dog"
    python -m serving.client encode photo.jpg --json
    python -m serving.client search "a dog on grass"
    python -m serving.client search "a dog on grass" --store photos.db --filter 'album == "2024"'
    python -m serving.client sentences photo.jpg
    python -m serving.client similar photo.jpg
    python -m serving.client rerank photo.jpg
    python -m serving.client request photo.jpg > request.json      # for REST, by curl
    python -m serving.client status

A `.npy` file of features [D] can replace a photo. Every list is best first, and its heading says
what the numbers are. Captions are ranked by log P / words^0.7 (export.task --length_power), so that
long ones have a chance: their log P, which is shown, need not fall.

While a server starts or loads a model, the client waits, up to --timeout. Exit codes: 0; 1 if
anything failed; 130 after Ctrl-C. status does not wait: 0 if the model is available and nothing
else is being loaded, 75 while something is, 1 otherwise.
"""

import re
from collections.abc import Callable, Mapping, Sequence

import grpc
import numpy as np

from mrnn_tf import schema
from mrnn_tf.errors import UserError
from mrnn_tf.escape import printable
from mrnn_tf.fingerprints import COMPARED, check_together
from mrnn_tf.retrieval import stored
from mrnn_tf.retrieval.milvus import MilvusStore
from serving import messages, tensors
from serving.answers import Row, checked, to_rows
from serving.channel import Channel, MissingSignatureError, ServingError

PhotosOrFeatures = Sequence[bytes] | np.ndarray


class Client:
    """A connection to the models `mrnn` and `mrnn_index` of one server, or of two.

    A call takes at most `timeout` seconds, with all its retries while the server is unavailable, of
    which gRPC makes at most 4. `versions` has for a model its version (int), or the label of one
    (str). Without `credentials` nothing is encrypted. With `on_wait`, a call waits up to `timeout`
    seconds for a server that is starting, and as long for a model that is being loaded; `on_wait`
    is called with a sentence that says so, each time with another one.

    A server is not trusted: an answer other than the signature's is a `ServingError`, as is one of
    more than 64 MB. Texts are as they came; escape them before a terminal shows them.

    Images are a list of the bytes of photos, or an array of features [B, D]. An answer is one
    dictionary per input, keyed by the names of the signature's tensors, without padding.

    Example:

        with Client("127.0.0.1:8500") as client:
            [answer] = client.caption([open("photo.jpg", "rb").read()])
            print(answer["captions"][0], answer["log_probs"][0])
    """

    def __init__(
        self,
        server: str = "127.0.0.1:8500",
        *,
        index_server: str | None = None,
        timeout: float = 30.0,
        retries: int = 3,
        versions: dict[str, int | str] | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        on_wait: Callable[[str], None] | None = None,
    ):
        self.server = server
        self.timeout = timeout
        self.versions = versions or {}
        addresses = {schema.MODEL: server, schema.INDEX: index_server or server}
        settings = timeout, retries, credentials, on_wait
        channels = {each: Channel(each, *settings) for each in set(addresses.values())}
        self._channels = {model: channels[address] for model, address in addresses.items()}
        self._together = set()  # pairs of versions of the model and the index that fit

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()

    def caption(self, images: PhotosOrFeatures) -> list[Row]:
        """The best `captions` of each image and their `log_probs`."""
        if not isinstance(images, np.ndarray):
            return to_rows(self.predict(schema.MODEL, schema.CAPTION, {schema.IMAGE_BYTES: images}))
        wanted = (schema.CAPTIONS, schema.LOG_PROBS)
        return [{name: row[name] for name in wanted} for row in self.beam(images)]

    def beam(self, images: PhotosOrFeatures, prefixes: Sequence[str] | None = None) -> list[Row]:
        """`captions` that begin with the prefixes, their `words` and the values of each word."""
        prefixes = prefixes or [""] * len(images)
        return self._ask(images, schema.MODEL, schema.BEAM_DECODE, **{schema.PREFIX: prefixes})

    def next_words(self, images: PhotosOrFeatures, prefixes: Sequence[str]) -> list[Row]:
        """The most likely `words` after each prefix and their `log_probs`."""
        return self._ask(images, schema.MODEL, schema.NEXT_WORD, **{schema.PREFIX: prefixes})

    def score(self, images: PhotosOrFeatures, sentences: Sequence[str]) -> list[Row]:
        """`log_prob`, `perplexity` and word counts of each sentence, given its image."""
        texts = {schema.SENTENCES: sentences}
        return self._ask(images, schema.MODEL, schema.SENTENCE_LOG_PROB, **texts)

    def encode(self, photos: Sequence[bytes]) -> dict[str, np.ndarray]:
        """`features` [B, D] and `refined` features [B, M]."""
        return self.predict(schema.MODEL, schema.ENCODE_IMAGE, {schema.IMAGE_BYTES: photos})

    def search_images(self, sentences: Sequence[str]) -> list[Row]:
        """The `ids` of the images that fit each sentence best, with `scores`."""
        texts = {schema.SENTENCES: sentences}
        return to_rows(self.predict(schema.INDEX, schema.SEARCH_IMAGES, texts))

    def search_store(
        self, store: MilvusStore, sentences: Sequence[str], k: int = stored.K, filter: str = ""
    ) -> list[Row]:
        """As `search_images`, in a vector database: its shortlist, the exact scores of `mrnn`."""
        version = self.versions.get(schema.MODEL)

        def predict(signature: str, inputs: Mapping) -> dict[str, np.ndarray]:
            nonlocal version
            outputs, answered = self._answer(schema.MODEL, signature, inputs, version)
            if version is None and answered is not None:  # vectors and scores are of one version
                version = answered
            if signature == schema.SENTENCE_VECTOR:
                store.check(self.fingerprints(schema.MODEL, version))
            return outputs

        results = stored.search(store, predict, sentences, k, filter)
        columns = [list(zip(*hits, strict=True)) or ((), ()) for hits in results]
        return [{schema.IDS: [*ids], schema.SCORES: [*scores]} for ids, scores in columns]

    def search_prefix(self, prefixes: Sequence[str]) -> list[Row]:
        """As `search_images` by the first words of a sentence, with the `word_scores` of each."""
        texts = {schema.PREFIX: prefixes}
        return to_rows(self.predict(schema.INDEX, schema.SEARCH_PREFIX, texts))

    def search_sentences(self, images: PhotosOrFeatures) -> list[Row]:
        """The indexed `sentences` that fit each image best, with `ids` and `scores`."""
        return self._ask(images, schema.INDEX, schema.SEARCH_SENTENCES)

    def similar_images(self, images: PhotosOrFeatures) -> list[Row]:
        """The `ids` of the indexed images that are most like each image, with `scores`."""
        return self._ask(images, schema.INDEX, schema.SIMILAR_IMAGES)

    def caption_reranked(self, images: PhotosOrFeatures) -> list[Row]:
        """`captions` by their `consensus` with those of similar images, and their `log_probs`."""
        return self._ask(images, schema.INDEX, schema.CAPTION_RERANKED)

    def count_words(self, sentences: Sequence[str]) -> list[tuple[int, int]]:
        """For every sentence its number of words, and how many of them the model does not know.

        A sentence of more words than the model takes has -1 words.
        """
        size = self.info(schema.MODEL, [schema.FEATURE_SIZE])[schema.FEATURE_SIZE]
        if not re.fullmatch(r"[0-9]{1,6}", size):
            sentence = f"{self.server} has a bad {schema.FEATURE_SIZE}: {printable(size[:20])}"
            raise ServingError(sentence, grpc.StatusCode.INTERNAL)
        rows = self.score(np.zeros([len(sentences), int(size)], np.float32), sentences)
        return [(row[schema.NUM_WORDS] - 1, row[schema.NUM_UNKNOWN]) for row in rows]

    def predict(
        self, model: str, signature: str, inputs: Mapping[str, tensors.ArrayOrStrings]
    ) -> dict[str, np.ndarray]:
        """The outputs of any signature of a model; strings come back as bytes."""
        outputs, _ = self._answer(model, signature, inputs, self.versions.get(model))
        return outputs

    def fingerprints(self, model: str, version: int | str | None = None) -> dict[str, str]:
        """What tells a model and its encoder from others; empty for those of earlier releases."""
        try:
            return self.info(model, COMPARED, version)
        except MissingSignatureError:
            return {}

    def info(
        self, model: str, keys: Sequence[str], version: int | str | None = None
    ) -> dict[str, str]:
        """What a model says of itself under some keys; "" of a key that it does not know."""
        version = self.versions.get(model) if version is None else version
        info, _ = self._answer(model, schema.MODEL_INFO, {schema.KEYS: keys}, version)
        return dict(zip(keys, tensors.to_python(info[schema.VALUES]), strict=True))

    def _answer(
        self,
        model: str,
        signature: str,
        inputs: Mapping[str, tensors.ArrayOrStrings],
        version: int | str | None,
    ) -> tuple[dict[str, np.ndarray], int | None]:
        """The outputs of a signature, and the version that answered where the server says it."""
        spec = messages.ModelSpec(name=model, signature_name=signature)
        if isinstance(version, str):
            spec.version_label = version
        elif version is not None:
            spec.version.value = version
        protos = {name: tensors.to_proto(values) for name, values in inputs.items()}
        request = messages.PredictRequest(model_spec=spec, inputs=protos)
        response = self._channel(model).call(messages.predict, request)
        try:
            arrays = {
                name: tensors.to_array(proto, must_hold_all=True)
                for name, proto in response.outputs.items()
            }
            arrays = checked(signature, arrays, len(next(iter(inputs.values()))))
        except UserError as error:
            server = self._channel(model).address
            sentence = f"{server} answered {signature} of {model} with a bad tensor: {error}"
            raise ServingError(sentence, grpc.StatusCode.INTERNAL) from None
        spec = response.model_spec
        return arrays, spec.version.value if spec.HasField("version") else None

    def status(self) -> dict[str, dict[int, str]]:
        """For every model its versions and their states; empty where it is not served."""
        return {model: channel.states(model) for model, channel in self._channels.items()}

    def is_loading(self, model: str) -> bool:
        """Whether the server of a model is loading versions, or says that it is not ready."""
        return self._channel(model).is_loading(model)

    def _channel(self, model: str) -> Channel:
        return self._channels.get(model, self._channels[schema.MODEL])

    def _ask(self, images: PhotosOrFeatures, model: str, signature: str, **texts) -> list[Row]:
        """Asks a signature that takes the features of images, and maybe a text for each."""
        if isinstance(images, np.ndarray) or model == schema.MODEL:
            is_encoded = isinstance(images, np.ndarray)
            features = images if is_encoded else self.encode(images)[schema.FEATURES]
            return to_rows(self.predict(model, signature, {schema.FEATURES: features, **texts}))
        try:
            return self._ask_index(images, signature)
        except ServingError as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise
        return self._ask_index(images, signature)  # a version that had answered was replaced

    def _ask_index(self, photos: Sequence[bytes], signature: str) -> list[Row]:
        """Asks the index about photos that the model encodes; refuses one of another model."""
        model, index = map(self.versions.get, (schema.MODEL, schema.INDEX))
        inputs = {schema.IMAGE_BYTES: photos}
        encoded, model = self._answer(schema.MODEL, schema.ENCODE_IMAGE, inputs, model)
        features = {schema.FEATURES: encoded[schema.FEATURES]}
        try:
            outputs, index = self._answer(schema.INDEX, signature, features, index)
        except ServingError as error:
            if error.code is grpc.StatusCode.INVALID_ARGUMENT:
                self._check_together(model, index)  # features of another size, perhaps
            raise
        self._check_together(model, index)
        return to_rows(outputs)

    def _check_together(self, model: int | None, index: int | str | None) -> None:
        """Refuses versions of the model and the index that do not belong together."""
        if (model, index) in self._together:
            return
        try:
            check_together(
                self.fingerprints(schema.MODEL, model), self.fingerprints(schema.INDEX, index)
            )
        except UserError as error:
            code = grpc.StatusCode.FAILED_PRECONDITION
            raise ServingError(f"{self._channels[schema.INDEX].address}: {error}", code) from None
        self._together.add((model, index))


if __name__ == "__main__":
    from absl import flags

    from serving import commands  # not above: it defines flags

    flags.adopt_module_key_flags(commands)
    commands.run()

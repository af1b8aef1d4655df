"""A client's connection to one server: retries, waiting, and why a call got no answer."""

import json
import re
import time
from collections.abc import Callable

import grpc
from google.protobuf.message import Message

from mrnn_tf import schema
from mrnn_tf.escape import printable
from serving import messages

MAX_RETRIES = 4  # gRPC makes at most five attempts
MAX_ANSWER_BYTES = 64 << 20
_SOON_SECONDS = 1.0  # within which a running server answers
_POLL_SECONDS = 0.5  # between two looks at a model that is being loaded
_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Where a name has several addresses, as a headless service has, use all of them.
    ("grpc.lb_policy_name", "round_robin"),
    # gRPC retries only what fits into this buffer; its default is smaller than a photo.
    ("grpc.per_rpc_retry_buffer_size", 2**31 - 1),
]
_RETRY_POLICY = {
    "initialBackoff": "0.2s",
    "maxBackoff": "2s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
_MISSING_SIGNATURE = re.compile(r"signature\b.*\bnot found", re.IGNORECASE)
_LOADING = {messages.State.START.name, messages.State.LOADING.name}
_HERE = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\]):(\d+)")
_NO_ENCODER = (
    "it was exported without an image encoder: give features (.npy) instead of photos, or export "
    "it with --encoder."
)
_WHY_MISSING = {
    schema.CAPTION: _NO_ENCODER,
    schema.ENCODE_IMAGE: _NO_ENCODER,
    schema.SENTENCE_VECTOR: "its variant cannot be searched, or it is older: export it again.",
    schema.CAPTION_RERANKED: "it holds no captioned image, or is older: make it again.",
}


class ServingError(RuntimeError):
    """Why a server gave no answer, in one sentence."""

    def __init__(self, sentence: str, code: grpc.StatusCode):
        super().__init__(sentence)
        self.code = code


class MissingSignatureError(ServingError):
    """A served version has no such signature."""


class Channel:
    """Calls the methods of the server at an address, with the settings of `Client`."""

    def __init__(
        self,
        address: str,
        timeout: float,
        retries: int,
        credentials: grpc.ChannelCredentials | None = None,
        on_wait: Callable[[str], None] | None = None,
    ):
        self.address = address
        options = [*_OPTIONS, ("grpc.enable_retries", int(retries > 0))]
        if retries > 0:
            policy = _RETRY_POLICY | {"maxAttempts": 1 + min(retries, MAX_RETRIES)}
            config = {"methodConfig": [{"name": [{}], "retryPolicy": policy}]}
            options.append(("grpc.service_config", json.dumps(config)))
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            self._channel = grpc.secure_channel(address, credentials, options)
        self.close = self._channel.close
        self._timeout = timeout
        self._on_wait, self._said = on_wait, set()
        self._is_reached = not on_wait  # or nobody waits until it is

    def call(self, method: Callable, request: Message) -> Message:
        """The answer to a request that names a model.

        Raises:
            ServingError: there is none.
        """
        if not self._is_reached:
            self._wait_for_server()
        spec = request.model_spec
        until, is_last = time.monotonic() + self._timeout, False
        while True:
            try:
                return method(self._channel)(request, timeout=self._timeout)
            except grpc.RpcError as error:
                code = error.code()
                may_come = code is grpc.StatusCode.NOT_FOUND or spec.version_label
                may_wait = self._on_wait and spec.signature_name and time.monotonic() < until
                if is_last or not (may_come and may_wait):
                    details = printable(" ".join((error.details() or "").split()))
                    is_missing = _MISSING_SIGNATURE.search(details)
                    kind = MissingSignatureError if is_missing else ServingError
                    raise kind(self._explain(code, details, spec), code) from None
            is_last = not self.is_loading(spec.name)  # but it may have been loaded since
            if not is_last:
                self._say(f"waiting until {spec.name} is loaded at {self.address}")
                time.sleep(_POLL_SECONDS)

    def states(self, model: str) -> dict[int, str]:
        """The states of a model's versions; empty where it is not served."""
        request = messages.GetModelStatusRequest(model_spec={"name": model})
        try:
            statuses = self.call(messages.get_model_status, request).model_version_status
        except ServingError as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise
            statuses = []
        return {each.version: messages.state_name(each.state) for each in statuses}

    def is_loading(self, model: str) -> bool:
        """Whether the server is loading versions of a model, or says that it is not ready."""
        if _LOADING & set(self.states(model).values()):
            return True
        request = messages.HealthCheckRequest()
        try:
            health = messages.check_health(self._channel)(request, timeout=self._timeout)
        except grpc.RpcError:  # few servers have this service
            return False
        return health.status == messages.NOT_SERVING

    def _wait_for_server(self) -> None:
        """Returns when the server can be reached, or after the timeout."""
        ready = grpc.channel_ready_future(self._channel)
        for seconds in (min(_SOON_SECONDS, self._timeout), self._timeout):
            try:
                ready.result(seconds)
                break
            except grpc.FutureTimeoutError:
                self._say(f"waiting for a server at {self.address}")
        ready.cancel()
        self._is_reached = True

    def _say(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._on_wait(f"{sentence}, up to {self._timeout:g} s")

    def _explain(self, code: grpc.StatusCode, details: str, spec: messages.ModelSpec) -> str:
        signature, server, model = spec.signature_name, self.address, spec.name
        if version := spec.version_label or spec.version.value:
            model += f" (version {version})"
        asked = f"{signature or 'the status'} of {model}"
        if code is grpc.StatusCode.UNAVAILABLE:
            return f"no server answers at {server}: {details}{_how_to_serve(server)}"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            late = f"did not answer {asked} within the timeout of {self._timeout:g} s"
            return f"{server} {late}; allow more, or send smaller batches."
        if _MISSING_SIGNATURE.search(details):
            reason = _WHY_MISSING.get(signature, "it is an older model: export it again.")
            return f"{model} at {server} has no signature {signature}; {reason}"
        if code is grpc.StatusCode.NOT_FOUND:
            return f"{server} does not serve {model}: {details}"
        return f"{server} refused {asked}: {details or code.name}"


def _how_to_serve(server: str) -> str:
    """The command for a server at that address, where it is on this machine."""
    if not (here := _HERE.fullmatch(server)):
        return ""
    return f"; start one: python -m serving.local --model_base_path models --port {here[1]}"

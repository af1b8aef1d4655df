"""A request that gets no answer: a gRPC code and one sentence, whatever the transport."""

import re
from collections.abc import Iterable

import grpc
import tensorflow as tf

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_FRAME = re.compile(r".*<stack traces unavailable>\n|\s*\[\[\{\{node.*|\s*\[Op:.*", re.DOTALL)
_LONGEST = 400  # gRPC sends the sentence in a header


class Refused(Exception):
    """Says why a request is not answered."""

    def __init__(self, sentence: str, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT):
        text = " ".join(sentence.split())
        super().__init__(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")
        self.code = code

    @classmethod
    def by_graph(cls, error: tf.errors.OpError) -> "Refused":
        """The complaint of an op, without the names of TensorFlow's own functions."""
        sentence = _FRAME.sub("", error.message or "") or type(error).__name__
        return cls(sentence, _CODES.get(error.error_code, grpc.StatusCode.UNKNOWN))


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)

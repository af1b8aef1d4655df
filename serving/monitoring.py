"""What a server tells of its requests: metrics in Prometheus' text form, and lines in its log.

Names are TF Serving's where it has such a metric; `request_count` has the further label
`entrypoint`. Everything runs on the event loop, so nothing here needs a lock.
"""

import asyncio
import bisect
import collections
import contextlib
import dataclasses
import itertools
import logging as python_logging
import math
import time
from collections.abc import Container, Iterator, Mapping, Sequence

import grpc
from absl import logging
from tensorflow_serving.apis.model_pb2 import ModelSpec

from serving.served_version import Refused

PREFIX = ":tensorflow:serving:"
CONTENT_TYPE = "text/plain; version=0.0.4"


class Histogram:
    """How many values are below limits that grow exponentially, for each combination of labels."""

    def __init__(self, name: str, labels: Sequence[str], first: float, growth: float, size: int):
        self._name, self._labels = PREFIX + name, labels
        self._limits = [*(first * growth**power for power in range(size)), math.inf]
        self._counts = collections.defaultdict(lambda: [0] * len(self._limits))
        self._sums = collections.Counter()

    def add(self, value: float, *labels: str) -> None:
        self._counts[labels][bisect.bisect_left(self._limits, value)] += 1
        self._sums[labels] += value

    def lines(self) -> Iterator[str]:
        yield f"# TYPE {self._name} histogram"
        for labels, counts in self._counts.items():
            pairs = dict(zip(self._labels, labels, strict=True))
            totals = list(itertools.accumulate(counts))
            for limit, total in zip(self._limits, totals, strict=True):
                upper = "+Inf" if limit == math.inf else f"{limit:g}"
                yield _sample(f"{self._name}_bucket", pairs | {"le": upper}, total)
            yield _sample(f"{self._name}_sum", pairs, self._sums[labels])
            yield _sample(f"{self._name}_count", pairs, totals[-1])


def latencies(name: str, *labels: str) -> Histogram:
    """A histogram of microseconds, up to about 20 minutes."""
    return Histogram(name, labels, 10, 1.8, 33)


def sizes(name: str) -> Histogram:
    """A histogram of numbers of rows."""
    return Histogram(name, (), 1, 2, 14)


def counter(name: str, labels: Sequence[str], counts: Mapping[tuple, int]) -> Iterator[str]:
    """The lines of a metric that only grows; `counts` has the values of the labels as keys."""
    yield f"# TYPE {PREFIX}{name} counter"
    for values, count in counts.items():
        yield _sample(PREFIX + name, dict(zip(labels, values, strict=True)), count)


def gauge(name: str, value: float) -> Iterator[str]:
    """The lines of a metric that goes up and down, which TF Serving does not have."""
    yield f"# TYPE serving_local_{name} gauge"
    yield _sample(f"serving_local_{name}", {}, value)


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    pairs = ",".join(f'{label}="{text.translate(escapes)}"' for label, text in labels.items())
    return f"{name}{{{pairs}}} {value}"


class LogLimit(python_logging.Filter):
    """Passes at most `lines` warnings and errors of each place in the code, in `seconds`.

    So no client can fill the log. Lines of information, as those of requests on demand, all pass.
    """

    def __init__(self, lines: int, seconds: float):
        super().__init__()
        self._lines, self._seconds = lines, seconds
        self._seen = {}  # by place: since when, how many, and the last of them

    def filter(self, record: python_logging.LogRecord) -> bool:
        if record.levelno < python_logging.WARNING:
            return True
        place = record.pathname, record.lineno
        began, count, _ = self._seen.get(place, (time.monotonic(), 0, ""))
        self._seen[place] = began, count + 1, record.getMessage()
        return count < self._lines

    def begin_anew(self) -> None:
        """Says how many lines were left out, where the seconds are over."""
        for place, (began, count, last) in list(self._seen.items()):
            if time.monotonic() - began >= self._seconds:
                del self._seen[place]
                if count > self._lines:
                    left_out = count - self._lines
                    logging.info("%d lines were left out that are like: %.200s", left_out, last)


@dataclasses.dataclass
class Call:
    """A request to predict, by gRPC or REST."""

    entrypoint: str  # and `api`: as TF Serving names them
    api: str
    spec: ModelSpec  # of the request; of the version that answers as soon as that is known
    rows: int | None = None
    runtime: float | None = None  # seconds in the queue and the graph


class Calls:
    """Counts and times the requests for the `models`, and logs them on demand."""

    def __init__(self, models: Container[str], log: bool):
        self._models = models
        self._log = log
        self._counts = collections.Counter()
        self._latency = latencies("request_latency", "model_name", "API", "entrypoint")
        self._runtime = latencies("runtime_latency", "model_name", "API", "runtime")

    @contextlib.contextmanager
    def observe(self, call: Call) -> Iterator[Call]:
        """Measures a request until its answer is made, or it is refused."""
        began, code = time.perf_counter(), grpc.StatusCode.UNKNOWN
        try:
            yield call
            code = grpc.StatusCode.OK
        except (Refused, asyncio.CancelledError) as error:
            code = getattr(error, "code", grpc.StatusCode.CANCELLED)
            raise
        finally:
            seconds = time.perf_counter() - began
            # A client may make up names: those are counted together.
            name = call.spec.name if call.spec.name in self._models else ""
            self._counts[name, call.entrypoint, code.name] += 1
            if code is grpc.StatusCode.OK:
                self._latency.add(1e6 * seconds, name, call.api, call.entrypoint)
                self._runtime.add(1e6 * call.runtime, name, "Predict", "TF2")
            if self._log:
                spec = call.spec
                version = spec.version.value if spec.HasField("version") else spec.version_label
                line = "%s model=%.99r version=%.99r signature=%.99r rows=%s ms=%.1f code=%s"
                named = spec.name, version, spec.signature_name, call.rows
                logging.info(line, call.entrypoint, *named, 1000 * seconds, code.name)

    def metrics(self) -> Iterator[str]:
        labels = ("model_name", "entrypoint", "status")
        yield from counter("request_count", labels, self._counts)
        yield from self._latency.lines()
        yield from self._runtime.lines()

"""Merges concurrent requests to one signature into batches.

Everything but the graph runs on the event loop, so nothing here needs a lock.
"""

import asyncio
import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Iterator

import grpc
import numpy as np
import tensorflow as tf
from absl import logging

from serving import monitoring
from serving.served_version import Arrays, Refused, ServedSignature


@dataclasses.dataclass
class _Request:
    signature: ServedSignature
    inputs: Arrays
    rows: int
    answer: asyncio.Future  # of Arrays | Refused
    came: float = dataclasses.field(default_factory=time.perf_counter)
    is_due: bool = False  # has waited long enough for others

    @property
    def kind(self) -> tuple:
        """What is equal for the requests of a batch."""
        return self.signature, {name: array.shape[1:] for name, array in self.inputs.items()}


class Batcher:
    """Runs requests, merged where they overlap.

    A merged batch has at most `max_rows`; 0 merges nothing, and a larger request runs alone. While
    `max_queued` requests wait, new ones are refused.
    """

    def __init__(self, max_rows: int, wait_seconds: float, max_queued: int):
        self._max_rows = max_rows
        self._wait = wait_seconds
        self._max_queued = max_queued
        # A graph has threads of its own: more runs at once than cores only make smaller batches.
        self._max_running = os.cpu_count() or 1
        self.running = 0  # batches
        self._last = 0  # requests in the last batch
        self._waiting = []
        self._queuing_latency = monitoring.latencies("batching_session:queuing_latency")
        self._input_size = monitoring.sizes("batching_session:input_batch_size")
        self._processed_size = monitoring.sizes("batching_session:processed_batch_size")

    def metrics(self) -> Iterator[str]:
        """The state of the queue for Prometheus."""
        for histogram in (self._queuing_latency, self._input_size, self._processed_size):
            yield from histogram.lines()
        yield from monitoring.gauge("queued_requests", len(self._waiting))
        yield from monitoring.gauge("running_batches", self.running)

    async def run(self, signature: ServedSignature, inputs: Arrays) -> Arrays:
        rows = signature.rows(inputs)
        if (queued := len(self._waiting)) >= self._max_queued:
            sentence = f"{queued} requests are waiting already: try again later."
            raise Refused(sentence, grpc.StatusCode.UNAVAILABLE)
        loop = asyncio.get_running_loop()
        request = _Request(signature, inputs, rows, loop.create_future())
        self._waiting.append(request)
        # A single client is not delayed: batching waits only when requests overlap.
        overlaps = signature.batched and (self.running or self._last > 1)
        is_full = sum(request.rows for request in self._waiting) >= self._max_rows
        loop.call_later(self._wait if overlaps and not is_full else 0, self._start, request)
        answer = await request.answer
        if isinstance(answer, Refused):
            raise answer
        return answer

    def _start(self, due: _Request | None = None) -> None:
        """Starts batches while a request is due and a core is free."""
        if due:
            due.is_due = True
        # Done are those that were cancelled, or ran out of time.
        self._waiting = [request for request in self._waiting if not request.answer.done()]
        while self.running < self._max_running and any(r.is_due for r in self._waiting):
            batch = self._take()
            self.running += 1
            self._last = len(batch)
            for request in batch:
                self._queuing_latency.add(1e6 * (time.perf_counter() - request.came))
                self._input_size.add(request.rows)
            self._processed_size.add(sum(request.rows for request in batch))
            run = asyncio.get_running_loop().run_in_executor(
                None, merged, batch[0].signature, [request.inputs for request in batch]
            )
            run.add_done_callback(functools.partial(self._answer, batch))

    def _take(self) -> list[_Request]:
        """The requests of the next batch: the first that waits, and those that fit to it."""
        batch, later, rows = [], [], 0
        for request in self._waiting:
            fits = not batch or (
                request.signature.batched
                and rows + request.rows <= self._max_rows
                and request.kind == batch[0].kind
            )
            (batch if fits else later).append(request)
            rows += request.rows if fits else 0
        self._waiting = later
        return batch

    def _answer(self, batch: list[_Request], run: asyncio.Future) -> None:
        self.running -= 1
        if error := run.exception():
            logging.error("A batch has failed", exc_info=error)
            failure = Refused("the server failed: see its log.", grpc.StatusCode.INTERNAL)
        answers = [failure] * len(batch) if error else run.result()
        for request, answer in zip(batch, answers, strict=True):
            if not request.answer.done():
                request.answer.set_result(answer)
        self._start()


def merged(signature: ServedSignature, batch: list[Arrays]) -> list[Arrays | Refused]:
    """Runs requests as one batch; if that fails, each alone, so that one never fails the others."""
    if len(batch) == 1:
        try:
            return [signature(batch[0])]
        except tf.errors.OpError as error:
            return [Refused.by_graph(error)]
    inputs = {name: np.concatenate([b[name] for b in batch]) for name in signature.inputs}
    ends = np.cumsum([signature.rows(b) for b in batch])
    with contextlib.suppress(tf.errors.OpError):
        outputs = signature(inputs)
        if all(len(output) == ends[-1] for output in outputs.values()):
            parts = zip(*(np.split(output, ends[:-1]) for output in outputs.values()), strict=True)
            return [dict(zip(outputs, part, strict=True)) for part in parts]
    return [answer for inputs in batch for answer in merged(signature, [inputs])]

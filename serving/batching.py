"""Merges concurrent requests to one signature into batches, and shares the cores among signatures.

Everything but the graph runs on the event loop, so nothing here needs a lock.
"""

import asyncio
import collections
import contextlib
import dataclasses
import functools
import math
import os
import time
from collections.abc import Iterator
from concurrent import futures

import grpc
import numpy as np
import tensorflow as tf
from absl import logging

from serving import monitoring
from serving.served_version import Arrays, Refused, ServedSignature


@dataclasses.dataclass(eq=False)
class _Request:
    signature: ServedSignature
    inputs: Arrays
    rows: int
    until: float  # the loop's time at which its client gives up
    answer: asyncio.Future  # of Arrays | Refused
    came: float = dataclasses.field(default_factory=time.perf_counter)
    is_due: bool = False  # has waited long enough for others

    @property
    def kind(self) -> tuple:
        """What is equal for the requests of a batch."""
        return self.signature, {name: array.shape[1:] for name, array in self.inputs.items()}


@dataclasses.dataclass(eq=False)
class _Batch:
    requests: list[_Request]

    @property
    def abandoned(self) -> bool:
        return all(request.answer.done() for request in self.requests)


@dataclasses.dataclass(eq=False)
class _Share:
    """What waits for, and runs in, one signature of a model, whatever its version."""

    waiting: list[_Request] = dataclasses.field(default_factory=list)
    running: set[_Batch] = dataclasses.field(default_factory=set)
    last: int = 0  # requests in the last batch


class Batcher:
    """Runs requests, merged where they overlap.

    A merged batch has at most `max_rows`; 0 merges nothing, and a larger request runs alone. While
    `max_queued` requests wait for a signature, it refuses new ones.

    As many batches run as there are cores, but a signature that runs none never waits for the
    others. A batch that its clients have given up cannot be interrupted: it counts against its own
    signature, and not against the others.
    """

    def __init__(self, max_rows: int, wait_seconds: float, max_queued: int):
        self._max_rows = max_rows
        self._wait = wait_seconds
        self._max_queued = max_queued
        # A graph has threads of its own: more runs at once than cores only make smaller batches.
        self._cores = os.cpu_count() or 1
        self._shares = collections.defaultdict(_Share)
        # One thread for every batch that may run; they are made when they are needed.
        self._threads = futures.ThreadPoolExecutor(1000, "batch")
        self._queuing_latency = monitoring.latencies("batching_session:queuing_latency")
        self._input_size = monitoring.sizes("batching_session:input_batch_size")
        self._processed_size = monitoring.sizes("batching_session:processed_batch_size")

    @property
    def running(self) -> int:
        """The batches that run, abandoned ones included."""
        return sum(len(share.running) for share in self._shares.values())

    def metrics(self) -> Iterator[str]:
        """The state of the queue for Prometheus."""
        for histogram in (self._queuing_latency, self._input_size, self._processed_size):
            yield from histogram.lines()
        waiting = sum(len(share.waiting) for share in self._shares.values())
        yield from monitoring.gauge("queued_requests", waiting)
        yield from monitoring.gauge("running_batches", self.running)

    async def run(
        self, signature: ServedSignature, inputs: Arrays, seconds: float = math.inf
    ) -> Arrays:
        """The outputs of a signature; a request that still waits after `seconds` is not run."""
        rows = signature.rows(inputs)
        share = self._shares[signature.model, signature.name]
        if (queued := len(share.waiting)) >= self._max_queued:
            sentence = f"{queued} requests are waiting already: try again later."
            raise Refused(sentence, grpc.StatusCode.UNAVAILABLE)
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        request = _Request(signature, inputs, rows, until, loop.create_future())
        share.waiting.append(request)
        # A single client is not delayed: batching waits only when requests overlap.
        overlaps = signature.batched and (share.running or share.last > 1)
        is_full = sum(request.rows for request in share.waiting) >= self._max_rows
        loop.call_later(self._wait if overlaps and not is_full else 0, self._start, request)
        answer = await request.answer
        if isinstance(answer, Refused):
            raise answer
        return answer

    def _start(self, due: _Request | None = None) -> None:
        """Starts batches while a request is due and its signature may run."""
        if due:
            due.is_due = True
        now = asyncio.get_running_loop().time()
        for share in self._shares.values():
            # Done are those that were cancelled, or ran out of time.
            share.waiting = [r for r in share.waiting if not r.answer.done() and now < r.until]
        # The signature that has waited longest goes first.
        waiting = [share for share in self._shares.values() if share.waiting]
        for share in sorted(waiting, key=lambda share: share.waiting[0].came):
            while any(request.is_due for request in share.waiting) and self._may_run(share):
                self._run(share)

    def _may_run(self, share: _Share) -> bool:
        if not share.running:
            return True
        batches = [batch for share in self._shares.values() for batch in share.running]
        busy = sum(not batch.abandoned for batch in batches)
        return max(busy, len(share.running)) < self._cores

    def _run(self, share: _Share) -> None:
        batch = _Batch(self._take(share))
        share.running.add(batch)
        share.last = len(batch.requests)
        for request in batch.requests:
            self._queuing_latency.add(1e6 * (time.perf_counter() - request.came))
            self._input_size.add(request.rows)
        self._processed_size.add(sum(request.rows for request in batch.requests))
        inputs = [request.inputs for request in batch.requests]
        run = asyncio.get_running_loop().run_in_executor(
            self._threads, merged, batch.requests[0].signature, inputs
        )
        run.add_done_callback(functools.partial(self._answer, share, batch))

    def _take(self, share: _Share) -> list[_Request]:
        """The requests of the next batch: the first that waits, and those that fit to it."""
        batch, later, rows = [], [], 0
        for request in share.waiting:
            fits = not batch or (
                request.signature.batched
                and rows + request.rows <= self._max_rows
                and request.kind == batch[0].kind
            )
            (batch if fits else later).append(request)
            rows += request.rows if fits else 0
        share.waiting = later
        return batch

    def _answer(self, share: _Share, batch: _Batch, run: asyncio.Future) -> None:
        share.running.remove(batch)
        if error := run.exception():
            logging.error("A batch has failed", exc_info=error)
            failure = Refused("the server failed: see its log.", grpc.StatusCode.INTERNAL)
        answers = [failure] * len(batch.requests) if error else run.result()
        for request, answer in zip(batch.requests, answers, strict=True):
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

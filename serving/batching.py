"""Merges concurrent requests to one signature into batches.

Everything but the graph runs on the event loop, so nothing here needs a lock.
"""

import asyncio
import contextlib
import dataclasses
import functools
import os
import weakref

import grpc
import numpy as np
import tensorflow as tf
from absl import logging

from serving.refusal import Refused
from serving.served_version import Arrays, ServedSignature


@dataclasses.dataclass
class _Request:
    inputs: Arrays
    rows: int
    arrived: float
    answer: asyncio.Future  # of Arrays | Refused

    @property
    def row_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: array.shape[1:] for name, array in self.inputs.items()}


@dataclasses.dataclass
class _Queue:
    """The requests to one signature."""

    waiting: list[_Request] = dataclasses.field(default_factory=list)
    arrival: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    running: int = 0  # batches
    last: int = 0  # requests in the last batch
    task: asyncio.Task | None = None


class Batcher:
    """Runs requests, merged where they overlap.

    Args:
        max_rows: int. The largest merged batch; a larger request runs alone. 0 merges nothing.
        wait_seconds: float. How long a request may wait for others.
        max_queued: int. The number of waiting requests beyond which new ones are refused.
    """

    def __init__(self, max_rows: int, wait_seconds: float, max_queued: int):
        self._max_rows = max_rows
        self._wait = wait_seconds
        self._max_queued = max_queued
        # A graph has threads of its own: more runs at once than cores only make smaller batches.
        self._free = asyncio.Semaphore(os.cpu_count() or 1)
        self._queues = weakref.WeakKeyDictionary()

    @property
    def busy(self) -> bool:
        return any(queue.running for queue in self._queues.values())

    async def run(self, signature: ServedSignature, inputs: Arrays) -> Arrays:
        rows = signature.rows(inputs)
        queued = sum(len(queue.waiting) for queue in self._queues.values())
        if queued >= self._max_queued:
            sentence = f"{queued} requests are waiting already: try again later."
            raise Refused(sentence, grpc.StatusCode.UNAVAILABLE)
        loop = asyncio.get_running_loop()
        request = _Request(inputs, rows, loop.time(), loop.create_future())
        queue = self._queues.setdefault(signature, _Queue())
        queue.waiting.append(request)
        queue.arrival.set()
        if queue.task is None:
            queue.task = asyncio.create_task(self._serve(signature, queue))
        answer = await request.answer
        if isinstance(answer, Refused):
            raise answer
        return answer

    async def _serve(self, signature: ServedSignature, queue: _Queue) -> None:
        """Starts batches until no request waits."""
        max_rows = self._max_rows if signature.batched else 0
        while queue.waiting:
            # A single client is not delayed: batching waits only when requests overlap.
            if max_rows and (queue.running or queue.last > 1):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(queue.waiting[0].arrived + self._wait):
                        while sum(request.rows for request in queue.waiting) < max_rows:
                            queue.arrival.clear()
                            await queue.arrival.wait()
            await self._free.acquire()
            if not (batch := _take(queue, max_rows)):
                self._free.release()
                continue
            queue.running += 1
            queue.last = len(batch)
            run = asyncio.get_running_loop().run_in_executor(
                None, merged, signature, [request.inputs for request in batch]
            )
            run.add_done_callback(functools.partial(self._answer, queue, batch))
        queue.task = None

    def _answer(self, queue: _Queue, batch: list[_Request], run: asyncio.Future) -> None:
        queue.running -= 1
        self._free.release()
        if error := run.exception():
            logging.error("A batch has failed", exc_info=error)
            failure = Refused("the server failed: see its log.", grpc.StatusCode.INTERNAL)
        answers = [failure] * len(batch) if error else run.result()
        for request, answer in zip(batch, answers, strict=True):
            if not request.answer.done():
                request.answer.set_result(answer)


def _take(queue: _Queue, max_rows: int) -> list[_Request]:
    """The requests of the next batch: the first that waits, and those that fit to it."""
    batch, later, rows = [], [], 0
    for request in queue.waiting:
        if request.answer.done():  # cancelled, or out of time
            continue
        fits = not batch or (
            rows + request.rows <= max_rows and request.row_shapes == batch[0].row_shapes
        )
        (batch if fits else later).append(request)
        rows += request.rows if fits else 0
    queue.waiting = later
    return batch


def merged(signature: ServedSignature, batch: list[Arrays]) -> list[Arrays | Refused]:
    """Runs requests as one batch; if that fails, each alone, so that one never fails the others."""
    if len(batch) == 1:
        try:
            return [signature(batch[0])]
        except tf.errors.OpError as error:
            return [Refused.by_graph(error)]
    inputs = {name: np.concatenate([b[name] for b in batch]) for name in signature.inputs}
    ends = np.cumsum([signature.rows(inputs) for inputs in batch])
    with contextlib.suppress(tf.errors.OpError):
        outputs = signature(inputs)
        if all(len(output) == ends[-1] for output in outputs.values()):
            parts = zip(*(np.split(output, ends[:-1]) for output in outputs.values()), strict=True)
            return [dict(zip(outputs, part, strict=True)) for part in parts]
    return [answer for inputs in batch for answer in merged(signature, [inputs])]

"""Concurrent requests to one signature, run as one batch.

All but the graph itself runs on the event loop, so nothing here needs a lock.
"""

import asyncio
import collections
import concurrent.futures
import dataclasses
import os
import weakref

import grpc
import numpy as np
import tensorflow as tf

from serving.refusal import Refused
from serving.signatures import Arrays, Signature


@dataclasses.dataclass
class _Request:
    inputs: Arrays
    rows: int
    arrived: float
    answer: asyncio.Future

    def fits(self, other: "_Request") -> bool:
        return all(self.inputs[name].shape[1:] == other.inputs[name].shape[1:]
                   for name in self.inputs)  # fmt: skip


@dataclasses.dataclass
class _Lane:
    """The requests to one signature."""

    waiting: collections.deque[_Request] = dataclasses.field(default_factory=collections.deque)
    full: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    running: int = 0
    last: int = 0  # requests in the last batch
    served: asyncio.Task | None = None


class Batcher:
    """Runs requests, merged where they meet.

    Args:
        max_rows: int. The largest merged batch; a larger request runs alone. 0 merges nothing.
        wait_seconds: float. How long a request may wait for company.
        max_queued: int. The number of waiting requests beyond which new ones are refused.
    """

    def __init__(self, max_rows: int, wait_seconds: float, max_queued: int):
        self._max_rows = max_rows
        self._wait = wait_seconds
        self._max_queued = max_queued
        self._queued = 0
        # A graph has threads of its own: more runs at once than cores only make smaller batches.
        threads = os.cpu_count() or 1
        self._free = asyncio.Semaphore(threads)
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, "graph")
        self._lanes = weakref.WeakKeyDictionary()
        self._runs = set()

    @property
    def busy(self) -> bool:
        return bool(self._runs)

    async def run(self, signature: Signature, inputs: Arrays) -> Arrays:
        rows = signature.rows(inputs)
        if self._queued >= self._max_queued:
            raise Refused(
                grpc.StatusCode.UNAVAILABLE,
                f"{self._queued} requests are waiting already: try again later.",
            )
        loop = asyncio.get_running_loop()
        request = _Request(inputs, rows, loop.time(), loop.create_future())
        lane = self._lanes.setdefault(signature, _Lane())
        lane.waiting.append(request)
        self._queued += 1
        if sum(each.rows for each in lane.waiting) >= self._max_rows:
            lane.full.set()
        if lane.served is None:
            lane.served = asyncio.create_task(self._serve(signature, lane))
        return await request.answer

    async def _serve(self, signature: Signature, lane: _Lane) -> None:
        """Starts batches until nobody waits."""
        while lane.waiting:
            # Who comes alone again and again does not wait.
            if signature.batched and self._max_rows and (lane.running or lane.last > 1):
                await self._company(lane)
            await self._free.acquire()
            batch = self._take(signature, lane)
            if not batch:
                self._free.release()
                continue
            run = asyncio.create_task(self._run(signature, lane, batch))
            self._runs.add(run)
            run.add_done_callback(self._runs.discard)
        lane.served = None

    async def _company(self, lane: _Lane) -> None:
        try:
            async with asyncio.timeout_at(lane.waiting[0].arrived + self._wait):
                await lane.full.wait()
        except TimeoutError:
            pass

    def _take(self, signature: Signature, lane: _Lane) -> list[_Request]:
        batch, later, rows = [], collections.deque(), 0
        for request in lane.waiting:
            if request.answer.done():  # cancelled, or out of time
                self._queued -= 1
            elif not batch or (
                signature.batched
                and rows + request.rows <= self._max_rows
                and request.fits(batch[0])
            ):
                batch.append(request)
                rows += request.rows
                self._queued -= 1
            else:
                later.append(request)
        lane.waiting = later
        lane.last = len(batch)
        if sum(each.rows for each in later) < self._max_rows:
            lane.full.clear()
        return batch

    async def _run(self, signature: Signature, lane: _Lane, batch: list[_Request]) -> None:
        answers = [Refused(grpc.StatusCode.INTERNAL, "the server failed: see its log.")]
        answers *= len(batch)
        lane.running += 1
        try:
            loop = asyncio.get_running_loop()
            inputs, rows = [each.inputs for each in batch], [each.rows for each in batch]
            answers = await loop.run_in_executor(self._pool, merged, signature, inputs, rows)
        finally:
            lane.running -= 1
            self._free.release()
            for request, answer in zip(batch, answers, strict=True):
                if request.answer.done():
                    continue
                if isinstance(answer, Refused):
                    request.answer.set_exception(answer)
                else:
                    request.answer.set_result(answer)


def merged(signature: Signature, batch: list[Arrays], rows: list[int]) -> list[Arrays | Refused]:
    """One run for all; where that fails, each by itself, so that one never fails the others."""
    if len(batch) == 1:
        try:
            return [signature(batch[0])]
        except tf.errors.OpError as error:
            return [Refused.by_graph(error)]
    together = {name: np.concatenate([each[name] for each in batch]) for name in signature.inputs}
    try:
        outputs = signature(together)
        if all(len(output) == sum(rows) for output in outputs.values()):
            return _split(outputs, rows)
    except tf.errors.OpError:
        pass
    return [
        answer
        for each, count in zip(batch, rows, strict=True)
        for answer in merged(signature, [each], [count])
    ]


def _split(outputs: Arrays, rows: list[int]) -> list[Arrays]:
    ends = np.cumsum(rows)
    return [
        {name: output[end - count : end] for name, output in outputs.items()}
        for end, count in zip(ends, rows, strict=True)
    ]

"""What a request may cost before anything of it runs: its size, its rows, its texts, its time.

A request reserves room for its bytes before they are read, and keeps it until it is answered, so
that the bytes of all connections together are bounded. Where room is short, the uploads that have
taken longest give way. Everything runs on the event loop, so nothing here needs a lock.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable

import grpc
import numpy as np

from mrnn_tf import schema
from serving.options import Limits
from serving.served_version import Arrays, Refused

# How long an upload may take while others wait for its room. It is counted in beats, which come
# only as fast as the event loop has time: an upload is not late because the server is.
_BEAT_SECONDS, _PATIENCE_BEATS = 0.1, 10


def check_inputs(limits: Limits, inputs: Arrays) -> None:
    """Refuses inputs of too many rows, and texts that are too long."""
    for name, array in inputs.items():
        if array.ndim and len(array) > limits.max_rows:
            raise Refused(f"input `{name}` has {len(array)} rows, {limits.max_rows} are allowed.")
        is_text = not name.endswith("_bytes") and name != schema.EXAMPLES
        if array.dtype == np.object_ and is_text:
            longest = max(map(len, array.flat), default=0)
            if longest > limits.max_text_bytes:
                sentence = f"a text of {longest} bytes, {limits.max_text_bytes} are allowed."
                raise Refused(f"input `{name}` has {sentence}")


class Slow(Refused):
    """A request that did not arrive in time."""

    def __init__(self):
        sentence = "the request did not arrive in time."
        super().__init__(sentence, grpc.StatusCode.DEADLINE_EXCEEDED)


class Uploads:
    """Admits requests as long as all together have at most `max_bytes`.

    At most `max_waiting` wait for room, and an upload has so many seconds to arrive.
    """

    def __init__(self, max_bytes: int, seconds: float, max_waiting: int):
        self.seconds = seconds
        self.reading: dict[Upload, None] = {}  # the one that began first comes first
        self._max_bytes = max_bytes
        self._max_waiting = max_waiting
        self._held = 0
        self._waiting = 0
        self._freed = asyncio.Event()
        self._last_beat = 0.0
        self.beats = 0  # so far, while somebody waits

    @contextlib.asynccontextmanager
    async def room(self, size: int) -> AsyncIterator["Upload"]:
        """Room for a request of at most that size, which is kept while the context lasts."""
        if self._held + size > self._max_bytes:
            await self._wait(size)
        upload = Upload(self, size)
        self.hold(size)
        try:
            yield upload
        finally:
            self.hold(-upload.size)

    async def _wait(self, size: int) -> None:
        sentence = f"{self._waiting} uploads are waiting already: try again later."
        refused = Refused(sentence, grpc.StatusCode.UNAVAILABLE)
        if self._waiting >= self._max_waiting:
            raise refused
        self._waiting += 1
        try:
            async with asyncio.timeout(self.seconds):
                while self._held + size > self._max_bytes:
                    self._beat()
                    self.evict(_PATIENCE_BEATS)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_BEAT_SECONDS):
                            await self._freed.wait()
        except TimeoutError:
            raise refused from None
        finally:
            self._waiting -= 1

    def hold(self, size: int) -> None:
        self._held += size
        self._freed.set()
        self._freed = asyncio.Event()

    def _beat(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._last_beat >= _BEAT_SECONDS:
            self._last_beat = now
            self.beats += 1

    def evict(self, beats: int = 0) -> None:
        """Gives up the unfinished upload that began first, if that was so many beats ago."""
        slowest = next(iter(self.reading), None)
        if slowest and self.beats - slowest.began >= beats:
            del self.reading[slowest]
            if not slowest.timeout.expired():
                slowest.timeout.reschedule(asyncio.get_running_loop().time())


@dataclasses.dataclass(eq=False)
class Upload:
    """The room of one request."""

    uploads: Uploads
    size: int
    began: int = 0  # at which beat
    timeout: asyncio.Timeout | None = None

    async def read(self, content: Awaitable[bytes]) -> bytes:
        """Waits for the content within the time for it, and keeps no more room than it needs."""
        self.began = self.uploads.beats
        try:
            async with asyncio.timeout(self.uploads.seconds) as self.timeout:
                self.uploads.reading[self] = None
                received = await content
        except TimeoutError:
            raise Slow from None
        finally:
            self.uploads.reading.pop(self, None)
        self.uploads.hold(len(received) - self.size)
        self.size = len(received)
        return received

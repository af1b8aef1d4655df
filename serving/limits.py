"""What a request may cost before anything of it runs: its size, its rows, its texts, its time.

A request has room for its bytes before they are read, and its answer until the client has taken it,
so that the bytes of all connections together are bounded. Where room is short, the uploads and
answers that take the most room give way. Everything runs on the event loop, so nothing
here needs a lock.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import grpc
import numpy as np

from mrnn_tf import schema
from serving.options import Limits
from serving.served_version import Arrays, Refused

# How long a transfer may take while others wait for its room. It is counted in beats, which come
# only as fast as the event loop has time: a transfer is not late because the server is.
_BEAT_SECONDS, _PATIENCE_BEATS = 0.1, 3


def check_rows(limits: Limits, name: str, shape: Sequence[int]) -> None:
    """Refuses an input of too many rows, from its shape."""
    if shape and shape[0] > limits.max_rows:
        raise Refused(f"input `{name}` has {shape[0]} rows, {limits.max_rows} are allowed.")


def check_inputs(limits: Limits, inputs: Arrays) -> None:
    """Refuses inputs of too many rows, and texts that are too long."""
    for name, array in inputs.items():
        check_rows(limits, name, array.shape)
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


class Unread(Exception):
    """An answer that its client did not take in time."""


class Uploads:
    """Admits requests as long as all together have at most `max_bytes`.

    A request has `seconds` to arrive, an answer `seconds` to be taken; while others wait for their
    room, `patience` beats. At most `max_waiting` wait.
    """

    def __init__(
        self, max_bytes: int, seconds: float, max_waiting: int, patience: int = _PATIENCE_BEATS
    ):
        self.seconds = seconds
        self.unfinished: dict[Upload, None] = {}  # the one that began first comes first
        self.beats = 0  # so far, while somebody waits
        self._max_bytes = max_bytes
        self._max_waiting = max_waiting
        self._patience = patience
        self._held = 0
        self._waiting: dict[asyncio.Future, int] = {}  # the bytes that each waits for
        self._last_beat = 0.0

    @contextlib.asynccontextmanager
    async def room(self, size: int = 0) -> AsyncIterator["Upload"]:
        """Room for a request of at most `size` bytes, which is kept while the context lasts."""
        await self.hold(size)
        upload = Upload(self, size)
        try:
            yield upload
        finally:
            self.release(upload.size)

    async def hold(self, size: int) -> None:
        """Waits until there is room for more bytes, and takes it."""
        if self._held + size <= self._max_bytes:
            self._held += size
            return
        sentence = "there is no room for the request: try again later."
        refused = Refused(sentence, grpc.StatusCode.UNAVAILABLE)
        if len(self._waiting) >= self._max_waiting:
            raise refused
        granted = asyncio.get_running_loop().create_future()
        self._waiting[granted] = size
        try:
            async with asyncio.timeout(self.seconds):
                while not granted.done():
                    self._beat()
                    self.evict(self._patience)
                    await asyncio.wait([granted], timeout=_BEAT_SECONDS)
        except (TimeoutError, asyncio.CancelledError) as error:
            if granted.done():
                self.release(size)
            raise (refused if isinstance(error, TimeoutError) else error) from None
        finally:
            self._waiting.pop(granted, None)

    def release(self, size: int) -> None:
        self._held -= size
        for granted, wanted in list(self._waiting.items()):
            if self._held + wanted <= self._max_bytes:
                self._held += wanted
                del self._waiting[granted]
                granted.set_result(None)

    def _beat(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._last_beat >= _BEAT_SECONDS:
            self._last_beat = now
            self.beats += 1

    def evict(self, beats: int = 0) -> bool:
        """Gives up a transfer, if one began at least `beats` ago.

        Where others wait for room, with `beats`, it is the largest: a small one would make none.
        Where they wait for a connection, it is the one that began first.
        """
        # Who waits for room itself holds none that others could have.
        late = [
            upload
            for upload in self.unfinished
            if self.beats - upload.began >= beats and (upload.size or not beats)
        ]
        if not late:
            return False
        chosen = max(late, key=lambda upload: upload.size) if beats else late[0]
        del self.unfinished[chosen]
        if not chosen.timeout.expired():
            chosen.timeout.reschedule(asyncio.get_running_loop().time())
        return True


@dataclasses.dataclass(eq=False)
class Upload:
    """The room of one request."""

    uploads: Uploads
    size: int
    began: int = 0  # at which beat
    timeout: asyncio.Timeout | None = None

    async def read(self, content: Awaitable[bytes]) -> bytes:
        """Waits for the content within the time for it, and keeps no more room than it needs."""
        async with self._in_time(Slow):
            received = await content
        self._shrink(len(received))
        return received

    async def send(self, answer: bytes, write: Callable[[bytes], Awaitable]) -> None:
        """Sends the answer, which takes the room of the request, within the time for it."""
        if len(answer) > self.size:
            await self.grow(len(answer) - self.size)
        self._shrink(len(answer))
        async with self._in_time(Unread):
            await write(answer)

    async def grow(self, size: int) -> None:
        """Makes room for a further part of the content."""
        await self.uploads.hold(size)
        self.size += size

    def _shrink(self, size: int) -> None:
        self.uploads.release(self.size - size)
        self.size = size

    @contextlib.asynccontextmanager
    async def _in_time(self, late: type[Exception]) -> AsyncIterator[None]:
        self.began = self.uploads.beats
        try:
            async with asyncio.timeout(self.uploads.seconds) as self.timeout:
                self.uploads.unfinished[self] = None
                yield
        except TimeoutError:
            raise late from None
        finally:
            self.uploads.unfinished.pop(self, None)

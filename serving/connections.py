"""Connections: how many there may be, and how long one may wait with its request or its answer.

uvicorn limits neither: half-sent requests and unread answers would stay for ever.
"""

import asyncio
import contextlib
import dataclasses
import functools
import http
import itertools
import os
import socket
import stat
import urllib.parse
from collections.abc import Callable

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


@dataclasses.dataclass
class Connections:
    """Makes connections, at most about `most` at a time.

    A new connection takes the place of the one that has waited longest with its first request, or
    else with its next one. Where none waits, `evict` gives up a half-sent body, if there is one.
    While more than `max_unread_bytes` of answers are not taken, the oldest of them are given up.
    """

    most: int
    max_unread_bytes: int
    seconds: float  # from the begin of a connection, or its last answer, to the next request
    evict: Callable[[], bool]
    fresh: dict["Connection", None] = dataclasses.field(default_factory=dict)
    idle: dict["Connection", None] = dataclasses.field(default_factory=dict)

    @property
    def protocol(self) -> Callable[..., "Connection"]:
        """What uvicorn takes for `http`."""
        return functools.partial(Connection, self)

    def give_up_unread(self) -> None:
        unread = {each: each.transport.get_write_buffer_size() for each in self.idle}
        excess = sum(unread.values()) - self.max_unread_bytes
        for connection, size in unread.items():
            if size and excess > 0:
                connection.transport.abort()
                excess -= size


class Connection(H11Protocol):
    """A connection that ends where its next request does not come in time."""

    def __init__(self, all_connections: Connections, **arguments):
        super().__init__(**arguments)
        self._all = all_connections
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > self._all.most:
            waiting = next(itertools.chain(self._all.fresh, self._all.idle), None)
            if waiting or not self._all.evict():
                (waiting or self).refuse(503, "too many connections: try again later.")
        if not transport.is_closing():
            self._wait()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.cycle and not self.cycle.response_complete:
            self._end_wait()

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()
        if not self.cycle.response_complete:  # the next request was there already
            self._end_wait()
        self._all.give_up_unread()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_wait()
        super().connection_lost(exc)

    def refuse(self, code: int, sentence: str) -> None:
        """Ends the connection, with an answer unless it has one already."""
        self._end_wait()
        if self.transport.get_write_buffer_size():  # an answer that nobody reads
            self.transport.abort()
        elif self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = b'{"error": "%s"}' % sentence.encode()
            headers = [("content-type", "application/json"), ("connection", "close")]
            headers.append(("content-length", str(len(body))))
            reason = http.HTTPStatus(code).phrase
            response = h11.Response(status_code=code, headers=headers, reason=reason)
            events = (response, h11.Data(data=body), h11.EndOfMessage())
            self.transport.write(b"".join(map(self.conn.send, events)))
        self.transport.close()

    def _wait(self) -> None:
        self._end_wait()
        (self._all.idle if self.cycle else self._all.fresh)[self] = None
        self._timer = self.loop.call_later(self._all.seconds, self._give_up)

    def _give_up(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        if self.cycle and not (self.conn.trailing_data[0] or unsent):
            self._end_wait()
            self.transport.close()  # it is idle: nobody waits for an answer
        else:
            self.refuse(408, "the request did not arrive in time.")

    def _end_wait(self) -> None:
        for waiting in (self._all.fresh, self._all.idle):
            waiting.pop(self, None)
        if self._timer:
            self._timer.cancel()
            self._timer = None


def hang_up(peer: str) -> None:
    """Ends the connection of a client, by the name that gRPC gives it: its server cannot."""
    host, _, port = urllib.parse.unquote(peer).partition(":")[2].rpartition(":")
    for descriptor in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):  # it listens, or is closed by now
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                # A socket for both versions of IP has the older one's addresses inside its own.
                name = [str(part).removeprefix("::ffff:") for part in connection.getpeername()]
                if name[:2] == [host.strip("[]"), port]:
                    connection.shutdown(socket.SHUT_RDWR)

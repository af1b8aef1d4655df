"""What a hostile client sends to a server: bombs, half-sent and oversized requests, storms."""

import base64
import contextlib
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator

import bombs
import grpc
import httpx
import numpy as np
import served
import tiny
from google.protobuf.message import Message

MEGABYTE = 1 << 20
PREDICT = "/tensorflow.serving.PredictionService/Predict"
LONG = b"a dog " * (MEGABYTE // 3)  # 2 MB
MANY_WORDS = b"a dog " * 5000  # 30 kB, far more words than a model takes


def _grpc(server, *arguments, **named) -> str:
    request = served.predict_request(*arguments, **named)
    try:
        server.prediction.Predict(request, timeout=server.timeout)
        return "OK"
    except grpc.RpcError as error:
        return error.code().name


def _post(server, body: bytes | Iterator[bytes], name: str) -> str:
    try:
        return str(server.http.post(f"/v1/models/{name}:predict", content=body).status_code)
    except httpx.TimeoutException:
        return "no answer"
    except httpx.TransportError:  # an early refusal may close the connection
        return "closed"


def image_bombs(server) -> str:
    bomb = [bombs.png(20_000, 20_000), bombs.gif(2000, 100), tiny.picture(0), b"", b"no image"]
    return _grpc(server, "caption", {"image_bytes": np.array(bomb, object)}, name="mrnn")


def empty_images(server) -> str:
    return _grpc(server, "caption", {"image_bytes": np.array([b""] * 256, object)}, name="mrnn")


def too_many_rows(server) -> str:
    return _grpc(server, "caption", {"image_bytes": np.array([b""] * 3000, object)}, name="mrnn")


def many_words(server) -> str:
    inputs = {"features": np.ones((3, 12), np.float32), "sentences": [b"a dog", MANY_WORDS, b""]}
    return _grpc(server, "sentence_log_prob", inputs, name="plain")


def long_texts(server) -> str:
    inputs = {"features": np.ones((2, 12), np.float32), "prefix": [LONG, b"a dog"]}
    return _grpc(server, "beam_decode", inputs, name="plain")


def oversized_message(server) -> str:
    images = np.array([bytes(33 * MEGABYTE)] * 2, object)
    return _grpc(server, "caption", {"image_bytes": images}, name="mrnn")


def damaged_message(server) -> str:
    ask = server.channel.unary_unary(PREDICT)
    try:
        ask(b"\xff" * 1000, timeout=server.timeout)
        return "OK"
    except grpc.RpcError as error:
        return error.code().name


def oversized_body(server) -> str:
    return _post(server, bytes(65 * MEGABYTE), "mrnn")


def oversized_chunks(server) -> str:
    return _post(server, (bytes(MEGABYTE) for _ in range(65)), "mrnn")


def many_values(server) -> str:
    return _post(server, b'{"instances": [' + b"1," * (20 * MEGABYTE) + b"1]}", "plain")


def large_json(server) -> str:
    """As many values as are parsed, with the wrong shape."""
    return _post(server, b'{"instances": [[' + b"0.25," * 900_000 + b"1]]}", "plain")


def large_photo(server) -> str:
    """A body of one long string."""
    photo = base64.b64encode(bytes(20 * MEGABYTE)).decode()
    return _post(server, json.dumps({"instances": [{"b64": photo}]}).encode(), "mrnn")


def no_http(server) -> str:
    with _connection(server) as connection:
        connection.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
        return connection.recv(100).decode().split(" ")[1]


def half_sent_requests(server) -> str:
    """Many connections whose requests do not end."""
    with contextlib.ExitStack() as stack:
        for _ in range(500):
            connection = stack.enter_context(_connection(server))
            connection.sendall(b"POST /v1/models/mrnn:predict HTTP/1.1\r\nHost: x\r\nConte")
        time.sleep(1)
    return "closed"


def half_sent_bodies(server) -> str:
    """Uploads that stop before their end."""
    head = b"POST /v1/models/mrnn:predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(_connection(server))
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError, ConnectionError):
                connection.send(head % (60 * MEGABYTE))
                for _ in range(40):
                    connection.send(bytes(MEGABYTE // 4))
                    time.sleep(0.002)
        time.sleep(1)
    return "closed"


def half_sent_messages(server) -> str:
    """Calls by gRPC whose message stops before its end."""
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(half_sent_message(server))
        time.sleep(1)
    return "closed"


@contextlib.contextmanager
def half_sent_message(server, method: str = PREDICT, size: int = 60 * MEGABYTE):
    """A call that sends 60 kB of the message that it announces."""
    with _http2(server) as connection:
        start = b"\0" + struct.pack(">I", size)
        connection.sendall(_call(1, method) + _frame(0, 0, 1, start + bytes(16000)))
        for _ in range(3):
            connection.sendall(_frame(0, 0, 1, bytes(15000)))
        yield connection


@contextlib.contextmanager
def unread_answers(server, request: Message, calls: int):
    """Calls whose answers the client has no window for: they stay with the server."""
    no_window = struct.pack(">HI", 4, 0)
    content = request.SerializeToString()
    message = b"\0" + struct.pack(">I", len(content)) + content
    with _http2(server, no_window) as connection:
        for stream in range(1, 2 * calls, 2):
            connection.sendall(_call(stream, PREDICT) + _frame(0, 1, stream, message))
        yield connection


def _http2(server, settings: bytes = b"") -> socket.socket:
    """A connection of HTTP/2 that is read by nobody."""
    host, port = server.address.split(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, settings))
    return connection


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags])
    return head + struct.pack(">I", stream) + payload


def _call(stream: int, method: str) -> bytes:
    """The frame that begins a call by gRPC."""

    def literal(index: int, value: str) -> bytes:  # HPACK, with a name of the static table
        name = bytes([index]) if index < 15 else bytes([15, index - 15])
        return name + bytes([len(value)]) + value.encode()

    headers = b"\x83\x86" + literal(4, method) + literal(1, "x") + literal(31, "application/grpc")
    return _frame(1, 4, stream, headers + b"\x00\x02te\x08trailers")


def cancellations(server) -> str:
    features = {"features": np.ones((64, 12), np.float32), "prefix": [b""] * 64}
    request = served.predict_request("beam_decode", features, name="plain")
    calls = [server.prediction.Predict.future(request, timeout=60) for _ in range(20)]
    time.sleep(0.05)
    for call in calls:
        call.cancel()
    return "CANCELLED"


def hang_ups(server) -> str:
    """REST's cancellations: the connection ends when the request is sent."""
    features = [{"features": [1.0] * 12, "prefix": ""}] * 64
    body = json.dumps({"signature_name": "beam_decode", "instances": features}).encode()
    head = b"POST /v1/models/plain:predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    for _ in range(10):
        with _connection(server) as connection:
            connection.sendall(head % len(body) + body)
    return "closed"


def deadline_storm(server) -> str:
    pictures = np.array([tiny.picture(0)] * 32, object)
    request = served.predict_request("caption", {"image_bytes": pictures}, name="mrnn")
    calls = [server.prediction.Predict.future(request, timeout=0.01 * i) for i in range(1, 30)]
    return "/".join(sorted({call.code().name for call in calls}))


def _connection(server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), 30)


def attack(server, name: Callable[..., str]) -> str:
    """What a client hears of its attack."""
    try:
        return name(server)
    except (ConnectionError, TimeoutError):  # of its own sockets
        return "closed"


ATTACKS = {  # and what they may hear
    image_bombs: {"OK", "UNAVAILABLE"},
    empty_images: {"OK", "UNAVAILABLE"},
    too_many_rows: {"INVALID_ARGUMENT"},
    many_words: {"OK", "UNAVAILABLE"},
    long_texts: {"INVALID_ARGUMENT"},
    oversized_message: {"RESOURCE_EXHAUSTED", "UNAVAILABLE"},
    damaged_message: {"INVALID_ARGUMENT"},
    oversized_body: {"413", "closed"},
    oversized_chunks: {"413", "408", "503", "closed"},
    many_values: {"400", "408", "503", "closed"},
    large_json: {"400", "408", "503"},
    large_photo: {"200", "408", "503", "closed"},
    no_http: {"400", "closed"},
    half_sent_requests: {"closed"},
    half_sent_bodies: {"closed"},
    half_sent_messages: {"closed"},
    cancellations: {"CANCELLED"},
    hang_ups: {"closed"},
    deadline_storm: {"DEADLINE_EXCEEDED", "OK", "DEADLINE_EXCEEDED/OK"},
}

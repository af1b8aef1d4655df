"""Requests that do not end, and clients that do not wait: others are answered all the same."""

import contextlib
import http.client
import os
import re
import socket
import time

import hostile
import numpy as np
import pytest
import served
from tensorflow_serving.apis import predict_pb2

from serving import grpc_api
from serving.served_version import Refused

X = np.ones((1, 4), np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("limits")
    served.write(folder / "models", 3)
    flags = ("--max_message_bytes=100000", "--max_inflight_bytes=400000")
    flags += ("--read_timeout_seconds=8", "--max_connections=40")
    with served.serving(folder, folder / "models", *flags) as running:
        yield running
        assert "Traceback" not in running.program.err


def answers(server) -> None:
    """Whether good requests are answered, by both ways."""
    assert server.predict("double", {"x": 0 * X})["y"].tolist() == [[3] * 4]
    body = {"instances": [[0] * 4]}
    answer = server.http.post("/v1/models/toy:predict", json=body, headers={"Connection": "close"})
    assert answer.json() == {"predictions": [[3] * 4]}
    assert server.healthy() and server.status()


def connection(server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), 30)


HEAD = b"POST /v1/models/toy:predict HTTP/1.1\r\nHost: x\r\n"
HALVES = {
    "nothing": b"",
    "line": b"POST /v1",
    "head": HEAD,
    "body": HEAD + b"Content-Length: 90000\r\n\r\n" + bytes(50000),
    "chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
}


def test_half_sent_requests_end_in_time(server):
    with contextlib.ExitStack() as stack:
        halves = {case: stack.enter_context(connection(server)) for case in HALVES}
        for case, half in halves.items():
            half.sendall(HALVES[case])
        for case, half in halves.items():
            answer = b""
            while not answer.endswith(b"}"):
                answer += half.recv(10000) or b"}"
            assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n"), case
            assert answer.endswith(b'{"error": "the request did not arrive in time."}'), case


def test_a_kept_connection_outlives_the_clients_patience(server):
    """Clients keep idle connections for 5 s: who asks at the last moment must be answered."""
    kept = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)
    with contextlib.closing(kept):
        for pause in (6, 0):
            kept.request("GET", "/v1/models/toy")
            answer = kept.getresponse()
            assert answer.status == 200 and answer.read()
            time.sleep(pause)
        assert kept.sock.recv(100) == b""  # later it ends, without a word


@pytest.mark.parametrize("case", HALVES)
def test_many_half_sent_requests_keep_nobody_out(server, case):
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(connection(server)).sendall(HALVES[case])
        answers(server)


@pytest.mark.parametrize("method", ["Predict", "GetModelMetadata"])
def test_half_sent_messages_keep_nobody_out(server, method):
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            name = f"/tensorflow.serving.PredictionService/{method}"
            stack.enter_context(hostile.half_sent_message(server, name, 90000))
        answers(server)
    assert hostile.damaged_message(server) == "INVALID_ARGUMENT"


def test_unread_answers_keep_nobody_out(server):
    request = served.predict_request("double", {"x": np.ones((200, 4), np.float32)})
    body = b'{"instances": [%s]}' % b",".join([b"[1,2,3,4]"] * 200)
    with contextlib.ExitStack() as stack:
        unread = [hostile.unread_answers(server, request, 30) for _ in range(8)]
        unread = [stack.enter_context(each) for each in unread]  # 0.8 MB
        time.sleep(1)
        answers(server)
        rest = [stack.enter_context(connection(server)) for _ in range(20)]
        for each in rest:
            for _ in range(20):
                each.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answers(server)
        served.wait_for(lambda: all(map(is_ended, unread)), seconds=30)
    answers(server)


def is_ended(connection: socket.socket) -> bool:
    """Whether the other end has hung up; what it has sent is read."""
    connection.setblocking(False)
    try:
        while connection.recv(100_000):
            pass
        return True
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_who_hangs_up_is_not_waited_for(server):
    body = b'{"signature_name": "wait", "instances": [2]}'
    running = os.cpu_count()
    for _ in range(running + 1):
        with connection(server) as hung_up:
            hung_up.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            time.sleep(0.1)
    asked = server.predict("wait", {"seconds": np.array([0], np.float32)})
    assert asked["waited"].tolist() == [0]
    seen = server.http.get("/monitoring/prometheus/metrics").text
    counted = re.search(r'request_count.*"toy".*"REST".*"CANCELLED".* (\d+)', seen)
    assert int(counted[1]) == running + 1


def test_a_message_of_too_many_values_is_not_parsed():
    def message(count):
        request = predict_pb2.PredictRequest()
        request.inputs["x"].string_val.extend([b""] * count)
        return request.SerializeToString()

    few = message(1000)
    assert grpc_api.parse(few, predict_pb2.PredictRequest.FromString).inputs["x"].string_val
    with pytest.raises(Refused, match="more than 4194304 values"):
        grpc_api.parse(message(4_300_000), predict_pb2.PredictRequest.FromString)
    photo = predict_pb2.PredictRequest()
    content = np.random.default_rng(0).bytes(4 << 20)
    photo.inputs["x"].string_val.extend([content, bytes(4 << 20), b"B" * (8 << 20)])
    assert grpc_api.parse(photo.SerializeToString(), predict_pb2.PredictRequest.FromString) == photo

"""Metrics, read by Prometheus' own parser, and the log lines of requests."""

import functools
import logging
import math
import os
import re

import grpc
import numpy as np
import pytest
import served
from prometheus_client.parser import text_string_to_metric_families

from serving import monitoring

PREFIX = ":tensorflow:serving:"
BATCHES = "batching_session:processed_batch_size"
REQUESTS = "batching_session:input_batch_size"
X = np.ones((5, 4), np.float32)


def samples(page: str) -> dict[tuple, float]:
    """The values of a page, by the names without TF Serving's prefix and the values of labels."""
    families = list(text_string_to_metric_families(page))
    assert len({family.name for family in families}) == len(families)
    return {
        (sample.name.removeprefix(PREFIX), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def metrics(server: served.Server) -> dict[tuple, float]:
    page = server.http.get("/monitoring/prometheus/metrics")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    return samples(page.text)


def refused(call, *arguments, **named):
    with pytest.raises(grpc.RpcError):
        call(*arguments, **named)


@pytest.fixture
def server(tmp_path):
    base = tmp_path / "models"
    served.write(base, 1)
    served.write(base, 2, 'the "other"')
    with served.serving(tmp_path, base, "--log_requests", "--batch_timeout_ms=100") as running:
        yield running


def test_requests_are_counted_timed_and_logged(server):
    assert metrics(server) == {
        ("serving_local_queued_requests",): 0,
        ("serving_local_running_batches",): 0,
    }
    for _ in range(3):
        server.predict("double", {"x": X})
    server.predict("", {"x": X[:1]}, name='the "other"')
    refused(server.predict, "", {"x": X + served.MARK})
    refused(server.predict, "", {"x": X}, version=7)
    refused(server.predict, "a\nb", {"x": X}, label="none", name="made up")
    post = functools.partial(server.http.post, "/v1/models/toy:predict")
    assert post(json={"instances": [[1, 2, 3, 4]] * 2}).status_code == 200
    assert post(content=b"{").status_code == 400
    assert post(json={"signature_name": "none", "inputs": 1}).status_code == 400

    seen = metrics(server)
    assert {key[1:]: n for key, n in seen.items() if key[0] == "request_count_total"} == {
        ("toy", "GRPC", "OK"): 3,
        ('the "other"', "GRPC", "OK"): 1,
        ("toy", "GRPC", "INVALID_ARGUMENT"): 1,
        ("toy", "GRPC", "NOT_FOUND"): 1,
        ("", "GRPC", "INVALID_ARGUMENT"): 1,
        ("toy", "REST", "OK"): 1,
        ("toy", "REST", "INVALID_ARGUMENT"): 1,
        ("toy", "REST", "FAILED_PRECONDITION"): 1,
    }
    for *name, count in (
        ("request_latency", "toy", "Predict", "GRPC", 3),
        ("request_latency", "toy", "predict", "REST", 1),
        ("request_latency", 'the "other"', "Predict", "GRPC", 1),
        ("runtime_latency", "toy", "Predict", "TF2", 4),
    ):
        name, *labels = name
        assert seen[f"{name}_count", *labels] == seen[f"{name}_bucket", *labels, "+Inf"] == count
        assert seen[f"{name}_bucket", *labels, "10"] == 0  # microseconds
        assert 10 < seen[f"{name}_sum", *labels] < 60e6
    assert seen[f"{REQUESTS}_count",] == seen["batching_session:queuing_latency_count",] == 6
    assert seen[f"{REQUESTS}_sum",] == seen[f"{BATCHES}_sum",] == 4 * 5 + 1 + 2
    assert seen[f"{REQUESTS}_bucket", "4"] == 2 and seen[f"{REQUESTS}_bucket", "8"] == 6

    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO "
    assert re.search(f"^{stamp}Loading toy version 1$", server.program.err, re.MULTILINE)
    lines = re.findall(rf"^{stamp}((?:GRPC|REST) .*)$", server.program.err, re.MULTILINE)
    assert all(0 <= float(re.search(r" ms=(\d+\.\d) ", line)[1]) < 60000 for line in lines)
    default = "model='toy' version=1 signature='serving_default'"
    assert [re.sub(r"ms=\S+ ", "", line) for line in lines] == [
        *["GRPC model='toy' version=1 signature='double' rows=5 code=OK"] * 3,
        "GRPC model='the \"other\"' version=2 signature='serving_default' rows=1 code=OK",
        f"GRPC {default} rows=5 code=INVALID_ARGUMENT",
        "GRPC model='toy' version=7 signature='' rows=None code=NOT_FOUND",
        r"GRPC model='made up' version='none' signature='a\nb' rows=None code=INVALID_ARGUMENT",
        f"REST {default} rows=2 code=OK",
        "REST model='toy' version='' signature='' rows=None code=INVALID_ARGUMENT",
        "REST model='toy' version='' signature='none' rows=None code=FAILED_PRECONDITION",
    ]


def test_what_waits_and_what_runs(server):
    waiting, running = ("serving_local_queued_requests",), ("serving_local_running_batches",)

    def ask(seconds):
        request = served.predict_request("wait", {"seconds": np.float32([seconds])})
        return server.prediction.Predict.future(request)

    cores = os.cpu_count()
    asked = []
    for number in range(1, cores + 1):
        asked.append(ask(4))
        served.wait_for(lambda number=number: metrics(server)[running] == number)
    asked += [ask(0) for _ in range(3)]
    served.wait_for(lambda: metrics(server)[waiting] == 3)
    assert all(each.code() is grpc.StatusCode.OK for each in asked)
    seen = metrics(server)
    assert seen[waiting] == seen[running] == 0
    assert seen[f"{REQUESTS}_count",] == cores + 3
    assert seen[f"{BATCHES}_count",] == cores + 1
    assert seen[f"{BATCHES}_bucket", "2"] == cores and seen[f"{BATCHES}_bucket", "4"] == cores + 1
    assert seen["batching_session:queuing_latency_sum",] > 1e6


def test_requests_are_not_logged_unless_asked_for(tmp_path):
    served.write(tmp_path / "models", 1)
    with served.serving(tmp_path, tmp_path / "models") as server:
        server.predict("", {"x": X})
        assert "GRPC" not in server.program.err


def test_no_client_can_fill_the_log(caplog):
    limit = monitoring.LogLimit(lines=2, seconds=0.0)
    logger, handler = logging.getLogger("hostile"), caplog.handler
    handler.addFilter(limit)
    try:
        for number in range(9):
            logger.warning("bad request %d", number)
            logger.info("asked for")
        logger.warning("another place")
        with caplog.at_level(logging.INFO, logger="absl"):
            limit.begin_anew()
        logger.warning("bad request")
    finally:
        handler.removeFilter(limit)
    assert [record.getMessage() for record in caplog.records] == [
        "bad request 0", "bad request 1", "another place",
        "7 lines were left out that are like: bad request 8", "bad request",
    ]  # fmt: skip


def test_the_text_form():
    strange = 'a\\b"c\nd{},=ä'
    histogram = monitoring.Histogram("h", ("name",), 1, 2, 3)
    for value in (0, 1, 1.5, 4, 5, 1e9):
        histogram.add(value, strange)
    counts = monitoring.counter("c", ("name", "other"), {(strange, ""): 10**15, ("", "x"): 2})
    lines = [*histogram.lines(), *counts, *monitoring.gauge("g", math.inf), ""]
    assert samples("\n".join(lines)) == {
        ("h_bucket", strange, "1"): 2,
        ("h_bucket", strange, "2"): 3,
        ("h_bucket", strange, "4"): 4,
        ("h_bucket", strange, "+Inf"): 6,
        ("h_sum", strange): 1e9 + 11.5,
        ("h_count", strange): 6,
        ("c_total", strange, ""): 10**15,
        ("c_total", "", "x"): 2,
        ("serving_local_g",): math.inf,
    }

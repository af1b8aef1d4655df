"""`python -m serving.local` as a real process, asked by gRPC and REST."""

import os
import signal
import socket
import threading
import time
from concurrent import futures
from pathlib import Path

import grpc
import numpy as np
import programs
import pytest
import served
from grpc_health.v1 import health_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    predict_pb2,
)

from mrnn_tf import schema

ROOT = Path(__file__).parent.parent
X = np.array([[1, 2, 3, 0.1]], np.float32)
GREETING = {"text": np.array(["dog", "ä"]), "scale": np.ones((2, 2), np.float32)}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    served.write(folder / "models", 3)
    served.write(folder / "models", 1, "other")
    flags = ("--max_message_bytes=100000", "--request_timeout_seconds=4", "--max_rows=100")
    flags += ("--max_text_bytes=1000",)
    with served.serving(folder, folder / "models", *flags) as running:
        yield running


def refused(call, *arguments, **named) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as error:
        call(*arguments, **named)
    return error.value.code().name, error.value.details()


def test_what_it_says(server):
    lines = server.program.out.splitlines()
    for name, version, line in zip(("other", "toy"), (1, 3), lines, strict=False):
        where = f"gRPC {server.address}, REST {server.url}/v1/models/{name}"
        assert line == f"serving {name} version {version}: {where}"
    assert lines[2:] == [f"next: python -m serving.client status --server {server.address}"]
    assert server.address.startswith("127.0.0.1:")


def test_predict(server):
    np.testing.assert_allclose(server.predict("double", {"x": X})["y"], 2 * X + 3)
    np.testing.assert_allclose(server.predict("", {"x": X}, name="other")["y"], 2 * X + 1)
    np.testing.assert_allclose(server.predict("", {"x": X}, version=3)["y"], 2 * X + 3)
    answer = server.predict("greet", GREETING)
    assert answer["greetings"].tolist() == [[b"hello dog", b"Hund"], ["hello ä".encode(), b""]]
    assert answer["size"].tolist() == [3, 2]
    assert answer["raw_bytes"].tolist() == [b"dog", "ä".encode()]
    assert answer["sum"].tolist() == [2, 2]
    assert server.predict("total", {"x": np.array([[2, 3]])})["total"] == 5


def test_the_answer_names_what_has_answered(server):
    request = served.predict_request("", {"x": X})
    answered = server.prediction.Predict(request).model_spec
    assert (answered.name, answered.signature_name) == ("toy", "serving_default")
    assert answered.version.value == 3


def test_an_output_filter(server):
    request = served.predict_request("greet", GREETING)
    request.output_filter.extend(["sum", "size"])
    assert set(server.prediction.Predict(request).outputs) == {"sum", "size"}
    request.output_filter.append("sum")
    assert refused(server.prediction.Predict, request)[0] == "INVALID_ARGUMENT"
    request.output_filter[:] = ["none"]
    code, sentence = refused(server.prediction.Predict, request)
    assert code == "INVALID_ARGUMENT"
    assert "`none`" in sentence


BAD = {
    "model": ("", {"x": X}, {"name": "none"}, "NOT_FOUND", "Latest(none)"),
    "version": ("", {"x": X}, {"version": 9}, "NOT_FOUND", "Specific(toy, 9)"),
    "signature": ("none", {"x": X}, {}, "FAILED_PRECONDITION", 'key "none" not found'),
    "missing": ("", {}, {}, "INVALID_ARGUMENT", "misses its input `x`"),
    "unknown": ("", {"x": X, "z": X}, {}, "INVALID_ARGUMENT", "no input `z`"),
    "type": ("", {"x": X.astype(int)}, {}, "INVALID_ARGUMENT", "`x` must be float32, got int64"),
    "shape": ("", {"x": X[:, 1:]}, {}, "INVALID_ARGUMENT", "[?, 4], got [1, 3]"),
    "rank": ("", {"x": X[0]}, {}, "INVALID_ARGUMENT", "[?, 4], got [4]"),
    "rows": ("greet", {**GREETING, "scale": X[:, :2]}, {}, "INVALID_ARGUMENT", "equally many"),
    "no rows": ("", {"x": X[:0]}, {}, "INVALID_ARGUMENT", "`x` has no rows"),
    "graph": ("", {"x": X + served.MARK}, {}, "INVALID_ARGUMENT", "marked value"),
    "many rows": ("", {"x": np.zeros((101, 4), np.float32)}, {}, "INVALID_ARGUMENT", "101 rows"),
    "long text": ("greet", {**GREETING, "text": ["", "a" * 1001]}, {}, "INVALID_ARGUMENT",
                  "`text` has a text of 1001 bytes, 1000 are allowed"),
    "long name": ("", {"x": X}, {"name": "ä" * 10000}, "NOT_FOUND", "Latest(ä"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_refusal_has_a_code_and_a_sentence(server, case):
    signature, inputs, spec, code, sentence = BAD[case]
    got, details = refused(server.predict, signature, inputs, **spec)
    assert got == code
    assert sentence in details
    assert "\n" not in details


def test_requests_without_a_model(server):
    for call, request in (
        (server.prediction.Predict, predict_pb2.PredictRequest()),
        (server.models.GetModelStatus, get_model_status_pb2.GetModelStatusRequest()),
        (server.prediction.GetModelMetadata, get_model_metadata_pb2.GetModelMetadataRequest()),
    ):
        assert refused(call, request) == ("INVALID_ARGUMENT", "Missing ModelSpec")


def test_methods_that_are_not_for_this_server(server):
    request = classification_pb2.ClassificationRequest()
    assert refused(server.prediction.Classify, request)[0] == "UNIMPLEMENTED"


def test_too_long_and_too_large(server):
    code, sentence = refused(server.predict, "wait", {"seconds": np.array([6], np.float32)})
    assert (code, sentence) == ("DEADLINE_EXCEEDED", "no answer within 4 seconds.")
    many = np.zeros((10000, 4), np.float32)
    assert refused(server.predict, "", {"x": many})[0] == "RESOURCE_EXHAUSTED"
    answer = server.http.post("/v1/models/toy:predict", content=b" " * 200_000)
    assert answer.status_code == 413
    assert "100000 bytes" in answer.json()["error"]


def test_metadata(server):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "toy"
    answer = server.prediction.GetModelMetadata(request)
    assert answer.model_spec.version.value == 3
    found = get_model_metadata_pb2.SignatureDefMap()
    assert answer.metadata["signature_def"].Unpack(found)
    assert set(served.SIGNATURES) < set(found.signature_def)
    greet = found.signature_def["greet"]
    assert set(greet.inputs) == {"text", "scale"}
    assert [dim.size for dim in greet.outputs["greetings"].tensor_shape.dim] == [-1, 2]

    request.metadata_field[:] = ["weights"]
    assert refused(server.prediction.GetModelMetadata, request) == (
        "INVALID_ARGUMENT",
        "Metadata field weights is not supported",
    )
    del request.metadata_field[:]
    assert refused(server.prediction.GetModelMetadata, request)[0] == "INVALID_ARGUMENT"


def test_status_and_health(server):
    assert server.status() == {3: ("AVAILABLE", "")}
    assert refused(server.status, "none")[0] == "NOT_FOUND"
    assert server.healthy()
    watched = server.health.Watch(health_pb2.HealthCheckRequest(), timeout=60)
    assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
    watched.cancel()


def test_rest_status_and_metadata(server):
    status = {
        "version": "3",
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    for path in ("/v1/models/toy", "/v1/models/toy/versions/3"):
        assert server.http.get(path).json() == {"model_version_status": [status]}
        metadata = server.http.get(f"{path}/metadata").json()
        assert metadata["model_spec"] == {"name": "toy", "signature_name": "", "version": "3"}
        greet = metadata["metadata"]["signature_def"]["signature_def"]["greet"]
        assert greet["inputs"]["text"]["dtype"] == "DT_STRING"
        assert greet["method_name"] == "tensorflow/serving/predict"


def test_rest_predict(server):
    def ask(body, path="toy"):
        answer = server.http.post(f"/v1/models/{path}:predict", json=body)
        assert answer.headers["content-type"] == "application/json"
        return answer.json()

    assert ask({"instances": [[1, 2, 3, 0.1]]}) == {"predictions": [[5.0, 7.0, 9.0, 3.2]]}
    assert ask({"inputs": {"x": [[0, 0, 0, 0]]}}, "other") == {"outputs": [[1.0] * 4]}
    assert ask({"inputs": [[0, 0, 0, 0]]}, "toy/versions/3") == {"outputs": [[3.0] * 4]}
    row = {"greetings": ["hello dog", "Hund"], "raw_bytes": {"b64": "ZG9n"}, "size": 3, "sum": 3.0}
    named = {"signature_name": "greet"}
    rows = [{"text": "dog", "scale": [1, 2]}, {"text": {"b64": "ZG9n"}, "scale": [2, 1]}]
    assert ask(named | {"instances": rows}) == {"predictions": [row, row]}
    columns = {"text": ["dog", "dog"], "scale": [[1, 2], [2, 1]]}
    outputs = {name: [value, value] for name, value in row.items()}
    assert ask(named | {"inputs": columns}) == {"outputs": outputs}
    assert ask({"signature_name": "total", "inputs": [[2, 3]]}) == {"outputs": 5}


REST_BAD = {
    "model": ("POST", "none:predict", b'{"instances": [1]}', 404, "Latest(none)"),
    "version": ("POST", "toy/versions/9:predict", b'{"instances": [1]}', 404, "Specific(toy, 9)"),
    "status": ("GET", "none", b"", 404, "any versions of model none"),
    "status of a version": ("GET", "toy/versions/9", b"", 404, "version 9 of model toy"),
    "metadata": ("GET", "none/metadata", b"", 404, "Latest(none)"),
    "vast version": ("GET", f"toy/versions/{10**30}", b"", 400, "Malformed request"),
    "digits of a version": ("GET", f"toy/versions/{'9' * 10000}", b"", 400, "Malformed request"),
    "word for a version": ("GET", "toy/versions/x", b"", 400, "Malformed request: GET"),
    "label": ("GET", "toy/labels/stable", b"", 400, "Unrecognized servable version label: stable"),
    "label to ask": ("POST", "toy/labels/stable:predict", b'{"inputs": 1}', 400, "label: stable"),
    "label's verb": ("GET", "toy/labels/stable:predict", b"", 400, "Malformed request: GET"),
    "verb": ("POST", "toy:guess", b"{}", 400, "Malformed request: POST /v1/models/toy:guess"),
    "method": ("GET", "toy:predict", b"", 400, "Malformed request: GET /v1/models/toy:predict"),
    "other path": ("GET", "../../v2", b"", 404, "Malformed request: GET /v2"),
    "nothing": ("POST", "toy:predict", b"", 400, "JSON Parse error"),
    "no JSON": ("POST", "toy:predict", b"\xff{", 400, "JSON Parse error"),
    "deep": ("POST", "toy:predict", b"[" * 50000, 400, "JSON Parse error"),
    "digits": ("POST", "toy:predict", b'{"inputs": ' + b"1" * 9999 + b"}", 400, "JSON Parse"),
    "list": ("POST", "toy:predict", b"[]", 400, "must be a JSON object"),
    "input": ("POST", "toy:predict", b'{"instances": [[1]]}', 400, "[?, 4], got [1, 1]"),
    "signature": ("POST", "toy:predict", b'{"signature_name": "z", "inputs": 1}', 400, '"z"'),
    "signature's type": ("POST", "toy:predict", b'{"signature_name": 1, "inputs": 1}', 400,
                         "must be a string"),
    "surrogate": ("POST", "toy:predict", rb'{"signature_name": "\ud800", "inputs": 1}', 400, "M"),
    "base64": ("POST", "toy:predict", '{"signature_name": "greet", "inputs": '
               '{"text": [{"b64": "ä\u0660"}], "scale": [[1, 1]]}}'.encode(), 400, "not base64"),
    "many rows": ("POST", "toy:predict", b'{"instances": [' + b"[1,2,3,4]," * 100 + b"[1,2,3,4]]}",
                  400, "101 rows"),
    "graph": ("POST", "toy:predict", b'{"inputs": [[100, 0, 0, 0]]}', 400, "marked value"),
}  # fmt: skip


@pytest.mark.parametrize("case", REST_BAD)
def test_a_rest_refusal_is_json(server, case):
    method, path, body, code, sentence = REST_BAD[case]
    answer = server.http.request(method, f"/v1/models/{path}", content=body)
    assert answer.status_code == code
    assert sentence in answer.json()["error"]
    assert set(answer.json()) == {"error"}


def test_versions_switch_under_continuous_requests(tmp_path):
    base = tmp_path / "models"
    served.write(base, 1)
    with served.serving(tmp_path, base) as server, futures.ThreadPoolExecutor(4) as pool:
        stop = threading.Event()

        def ask():
            versions = []
            while not stop.is_set():
                versions.append(int(server.predict("", {"x": 0 * X})["y"][0, 0]))
            return versions

        asking = [pool.submit(ask) for _ in range(4)]
        served.write(base, 2)
        served.wait_for(lambda: server.status().get(2) == ("AVAILABLE", ""))
        served.write_broken(base, 3)
        served.wait_for(lambda: server.status().get(3, ("",))[0] == "END")
        served.write(base, 4)
        served.wait_for(lambda: server.status().get(2) == ("END", ""))
        time.sleep(0.2)
        stop.set()
        for each in asking:
            versions = each.result()
            assert versions == sorted(versions)
            assert {1, 4} <= set(versions) <= {1, 2, 4}
        assert server.status()[3][1] and str(tmp_path) not in server.status()[3][1]
        assert "toy version 3 cannot be loaded" in server.program.err
        assert "serving toy version 4: " in server.program.out


def test_the_deployed_configuration_and_its_labels(tmp_path):
    base, config = tmp_path / "models", tmp_path / "models.config"
    text = (ROOT / "serving" / "deploy" / "tf_serving" / "models.config").read_text()
    text = text.replace('"/models/', f'"{base}/')
    config.write_text(text)
    names = (schema.MODEL, schema.INDEX)
    for name in names:
        served.write(base, 1, name)
        served.write(base, 2, name)
    zeros = {"x": 0 * X}
    with served.serving(tmp_path, config) as server:

        def versions(**spec):
            """The version of each model that answers, by gRPC."""
            return [server.predict("", zeros, name=name, **spec)["y"][0, 0] for name in names]

        def by_rest(path, method="GET", **body):
            answer = server.http.request(method, f"/v1/models/mrnn/{path}", **body)
            assert answer.status_code == 200, answer.text
            return answer.json()

        for spec in ({}, {"version": 1}, {"label": "stable"}, {"label": "canary"}):
            assert versions(**spec) == [1, 1]
        assert refused(server.predict, "", zeros, name="mrnn", version=2)[0] == "NOT_FOUND"

        # The steps that the file's comment gives, for both models.
        text = text.replace("versions: 1", "versions: 1 versions: 2")
        config.write_text(text)
        for name in names:
            served.wait_for(lambda name=name: server.status(name).get(2) == ("AVAILABLE", ""))
        text = text.replace('"canary" value: 1', '"canary" value: 2')
        config.write_text(text)
        served.wait_for(lambda: versions(label="canary") == [2, 2])
        assert versions(label="stable") == versions(version=1) == [1, 1]
        assert versions() == [2, 2]
        for label, version in (("stable", 1), ("canary", 2)):
            answer = by_rest(f"labels/{label}:predict", "POST", json={"instances": [[0] * 4]})
            assert answer == {"predictions": [[version] * 4]}
            [status] = by_rest(f"labels/{label}")["model_version_status"]
            assert (status["version"], status["state"]) == (str(version), "AVAILABLE")
            assert by_rest(f"labels/{label}/metadata")["model_spec"]["version"] == str(version)
        text = text.replace('"stable" value: 1', '"stable" value: 2')
        config.write_text(text.replace("versions: 1 ", ""))
        served.wait_for(lambda: server.status("mrnn").get(1) == ("END", ""))
        served.wait_for(lambda: versions(label="stable") == [2, 2])
        assert refused(server.predict, "", zeros, name="mrnn", version=1)[0] == "NOT_FOUND"
        assert "not currently available" not in server.program.err


def test_concurrent_requests_are_merged_and_isolated(tmp_path):
    base = tmp_path / "models"
    served.write(base, 1, warm_up=False)
    with served.serving(tmp_path, base, "--batch_timeout_ms=100") as server:
        with futures.ThreadPoolExecutor(16) as pool:

            def ask(number):
                try:
                    return server.predict("", {"x": np.full((1, 4), number, np.float32)})["y"][0, 0]
                except grpc.RpcError as error:
                    return error.code()

            good = list(pool.map(ask, range(48)))
            calls = server.predict("count", {"x": np.zeros(1, np.int32)})["calls"][0]
            mixed = list(pool.map(ask, [5, served.MARK + 1] * 8))
        assert good == [2 * number + 1 for number in range(48)]
        assert calls <= 24
        assert mixed == [11, grpc.StatusCode.INVALID_ARGUMENT] * 8


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_requests_end_before_the_server(tmp_path, number):
    base = tmp_path / "models"
    served.write(base, 1)
    with served.serving(tmp_path, base) as server:
        waiting = {"seconds": np.array([1.5], np.float32)}
        asked = server.prediction.Predict.future(served.predict_request("wait", waiting))
        with futures.ThreadPoolExecutor(1) as pool:
            body = {"signature_name": "wait", "instances": [1.5]}
            posted = pool.submit(server.http.post, "/v1/models/toy:predict", json=body)
            time.sleep(0.5)
            done = server.stop(number)
            assert posted.result().json() == {"predictions": [1.5]}
        assert asked.result().outputs["waited"].float_val == [1.5]
        assert done.code == 0
        assert "Traceback" not in done.err


def test_a_stop_waits_no_longer_than_its_grace(tmp_path):
    base = tmp_path / "models"
    served.write(base, 1)
    with served.serving(tmp_path, base, "--grace_seconds=0.5") as server:
        waiting = {"seconds": np.array([20], np.float32)}
        asked = server.prediction.Predict.future(served.predict_request("wait", waiting))
        time.sleep(0.5)
        began = time.monotonic()
        done = server.stop()
        assert time.monotonic() - began < 10
        assert done.code == 0
        assert asked.exception() is not None


def test_a_stop_while_a_model_loads(tmp_path):
    path = served.write(tmp_path / "models", 1)
    waiting = {"seconds": np.array([100], np.float32)}
    served.write_warm_up(path, [served.predict_request("wait", waiting)])
    flags = [f"--model_base_path={tmp_path}/models", "--port=0", "--rest_api_port=0"]
    program = programs.start(tmp_path, "serving.local", *flags)
    log = program.folder / "err"
    served.wait_for(lambda: log.exists() and "Loading toy version 1" in program.err, program)
    os.kill(program.process.pid, signal.SIGTERM)
    assert program.wait(30).code == 0


def test_an_empty_directory_is_waited_for(tmp_path):
    base = tmp_path / "models"
    base.mkdir()
    with served.serving(tmp_path, base, "--nobatching", "--intra_op_threads=1", ready=False) as it:
        assert f"waiting for a model in {base}: gRPC " in it.program.out
        assert not it.healthy()
        assert refused(it.predict, "", {"x": X})[0] == "NOT_FOUND"
        served.write(base, 1)
        served.wait_for(it.healthy)
        assert it.predict("", {"x": 0 * X})["y"].tolist() == [[1] * 4]


def test_more_than_may_wait_is_unavailable(tmp_path):
    base = tmp_path / "models"
    served.write(base, 1)
    with served.serving(tmp_path, base, "--max_queued=1", "--nobatching") as server:
        waiting = {"seconds": np.array([1], np.float32)}
        request = served.predict_request("wait", waiting)
        asked = [server.prediction.Predict.future(request) for _ in range(12)]
        codes = {each.code() for each in asked}
        assert codes == {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}


def test_wrong_flags_are_one_sentence(tmp_path):
    (tmp_path / "models").mkdir()
    base = f"--model_base_path={tmp_path}/models"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cases = {
            ("--port=0",): "exactly one of --model_base_path and --model_config_file is required",
            (base, f"--model_config_file={tmp_path}/x"): "exactly one of --model_base_path and",
            (f"--model_config_file={tmp_path}/none",): (
                f"--model_config_file: there is no file {tmp_path}/none"
            ),
            (f"--model_base_path={tmp_path}/none",): f"no directory {tmp_path}/none",
            (base, f"--port={port}"): f"--port: cannot listen on 127.0.0.1:{port}",
            (base, "--port=0", f"--rest_api_port={port}"): "--rest_api_port: cannot listen on",
            (base, "--max_batch_size=0"): "max_batch_size",
        }
        started = {flags: programs.start(tmp_path, "serving.local", *flags) for flags in cases}
        for flags, sentence in cases.items():
            done = started[flags].wait(60)
            assert done.code == 1
            assert sentence in done.error

"""A small SavedModel with several signatures, and servers that serve it as real processes."""

import contextlib
import os
import re
import signal
import time
from pathlib import Path

import grpc
import httpx
import programs
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import (
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_log_pb2,
    prediction_service_pb2_grpc,
)

SIGNATURES = ("double", "count", "greet", "wait", "sums", "total")
MARK = 100.0  # `double` fails on larger values


class Toy(tf.Module):
    """Signatures of the kinds that matter to a server; each version adds its number."""

    def __init__(self, version: int):
        self.version = tf.Variable(float(version))
        self.calls = tf.Variable(0)
        self.table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(["dog"], ["Hund"]), ""
        )

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32)])
    def double(self, x):
        marked = tf.debugging.assert_less(x, MARK, message="marked value")
        with tf.control_dependencies([marked]):
            self.calls.assign_add(1)
            return {"y": 2.0 * x + self.version}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
    def count(self, x):
        return {"calls": x + self.calls}

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.string), tf.TensorSpec([None, 2], tf.float32)]
    )
    def greet(self, text, scale):
        return {
            "greetings": tf.stack([tf.strings.join(["hello ", text]), self.table[text]], axis=1),
            "size": tf.strings.length(text),
            "raw_bytes": text,
            "sum": tf.reduce_sum(scale, axis=1),
        }

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def wait(self, seconds):
        until = tf.timestamp() + tf.cast(tf.reduce_max(seconds), tf.float64)
        tf.while_loop(lambda: tf.timestamp() < until, lambda: (), ())
        return {"waited": seconds}

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int64)])
    def sums(self, x):
        self.calls.assign_add(1)
        return {"sums": tf.reduce_sum(x, axis=1)}

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int64)])
    def total(self, x):
        return {"total": tf.reduce_sum(x)}  # has no rows: not to be merged


def write(base: Path, version: int, name: str = "toy", warm_up: bool = True) -> Path:
    """Exports a version as exporters do: beside, then renamed."""
    toy = Toy(version)
    partial = base / name / f"{version}.partial"
    signatures = {key: getattr(toy, key) for key in SIGNATURES}
    tf.saved_model.save(toy, str(partial), signatures | {"serving_default": toy.double})
    if warm_up:
        request = predict_request("double", {"x": [[1.0, 2.0, 3.0, 4.0]]}, name)
        write_warm_up(partial, [request])
    return partial.rename(base / name / str(version))


def write_warm_up(model: Path, requests: list) -> None:
    (model / "assets.extra").mkdir(exist_ok=True)
    path = model / "assets.extra" / "tf_serving_warmup_requests"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for request in requests:
            log = prediction_log_pb2.PredictLog(request=request)
            writer.write(prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString())


def write_broken(base: Path, version: int, name: str = "toy") -> Path:
    """A version whose variables are missing."""
    whole = write(base, version + 1000, name)
    partial = whole.rename(base / name / f"{version}.partial")
    for path in (partial / "variables").iterdir():
        path.unlink()
    return partial.rename(base / name / str(version))


def predict_request(
    signature: str, inputs: dict, name: str = "toy", version: int | None = None, label: str = ""
):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = name
    request.model_spec.signature_name = signature
    if version is not None:
        request.model_spec.version.value = version
    if label:
        request.model_spec.version_label = label
    for key, value in inputs.items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
    return request


class Server:
    """A running `python -m serving.local`, and what asks it."""

    def __init__(self, program: programs.Program, timeout: float = 60):
        self.program, self.timeout = program, timeout
        found = wait_for(lambda: re.search(r"gRPC (\S+), REST (http://[^/\s]*)", program.out))
        self.address, self.url = found.groups()
        options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
        self.channel = grpc.insecure_channel(self.address, options)
        self.prediction = prediction_service_pb2_grpc.PredictionServiceStub(self.channel)
        self.models = model_service_pb2_grpc.ModelServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)
        self.http = httpx.Client(base_url=self.url, timeout=timeout)

    def predict(self, signature: str, inputs: dict, **spec) -> dict:
        request = predict_request(signature, inputs, **spec)
        response = self.prediction.Predict(request, timeout=self.timeout)
        return {name: tf.make_ndarray(proto) for name, proto in response.outputs.items()}

    def status(self, name: str = "toy") -> dict[int, tuple[str, str]]:
        """The state and the error of every version."""
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = name
        return {
            each.version: (
                get_model_status_pb2.ModelVersionStatus.State.Name(each.state),
                each.status.error_message,
            )
            for each in self.models.GetModelStatus(
                request, timeout=self.timeout
            ).model_version_status
        }

    def healthy(self) -> bool:
        answer = self.health.Check(health_pb2.HealthCheckRequest(), timeout=self.timeout)
        return answer.status == health_pb2.HealthCheckResponse.SERVING

    def stop(self, number: int = signal.SIGTERM) -> programs.Program:
        if self.program.process.is_alive():
            os.kill(self.program.process.pid, number)
        self.program.wait(60)
        self.close()
        return self.program

    def close(self) -> None:
        """Ends the connections."""
        self.channel.close()
        self.http.close()


@contextlib.contextmanager
def serving(folder: Path, base: Path, *flags, ready: bool = True):
    """A server on free ports, stopped at the end; `base` is a directory, or a configuration."""
    models = "--model_base_path" if base.is_dir() else "--model_config_file"
    program = programs.start(
        folder, "serving.local", models, base, "--port=0", "--rest_api_port=0",
        "--poll_seconds=0.1", *flags,
    )  # fmt: skip
    try:
        log = program.folder / "out"
        said = "next: " if ready else "gRPC"
        wait_for(lambda: log.exists() and said in program.out, program)
        server = Server(program)
        yield server
        server.stop()
    finally:
        program.process.kill()
        program.wait()


def wait_for(condition, program: programs.Program | None = None, seconds: float = 300):
    """What a condition says when it is no longer false."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if program and not program.process.is_alive():
            raise AssertionError(program.err)
        if result := condition():
            return result
        time.sleep(0.02)
    raise AssertionError("waited too long" + (f": {program.err}" if program else ""))

"""Thousands of malformed requests: always a code and a sentence, and the server lives on."""

import collections
import json
import os

import grpc
import numpy as np
import pytest
import served
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorflow_serving.apis import predict_pb2

EXAMPLES = int(os.environ.get("SERVING_FUZZ_EXAMPLES", "3000"))
VALID = {
    "double": {"x": np.zeros((1, 4), np.float32)},
    "count": {"x": np.zeros(2, np.int32)},
    "greet": {"text": np.array(["dog", "cat"]), "scale": np.ones((2, 2), np.float32)},
    "sums": {"x": np.ones((2, 3), np.int64)},
    "total": {"x": np.ones((2, 3), np.int64)},
    "wait": {"seconds": np.zeros(1, np.float32)},
}
thorough = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None
)
int64s = st.integers(-(2**63), 2**63 - 1)
fields = st.one_of(
    st.tuples(st.just("dtype"), st.integers(0, 130)),
    st.tuples(st.just("tensor_content"), st.binary(max_size=40)),
    st.tuples(st.just("version_number"), st.integers(-5, 5)),
    st.tuples(st.just("float_val"), st.lists(st.floats(0, 1, width=32), max_size=8)),
    st.tuples(st.just("int_val"), st.lists(st.integers(-(2**31), 2**31 - 1), max_size=8)),
    st.tuples(st.just("int64_val"), st.lists(int64s, max_size=8)),
    st.tuples(st.just("string_val"), st.lists(st.binary(max_size=8), max_size=8)),
    st.tuples(st.just("half_val"), st.lists(st.integers(0, 2**16), max_size=4)),
)
shapes = st.lists(st.one_of(st.integers(0, 5), int64s), max_size=4)


def change_a_field(draw, request):
    proto = request.inputs[draw(st.sampled_from(sorted(request.inputs)))]
    name, value = draw(fields)
    proto.ClearField(name)
    if isinstance(value, list):
        getattr(proto, name).extend(value)
    else:
        setattr(proto, name, value)


def change_a_shape(draw, request):
    proto = request.inputs[draw(st.sampled_from(sorted(request.inputs)))]
    del proto.tensor_shape.dim[:]
    for size in draw(shapes):
        proto.tensor_shape.dim.add(size=size)
    proto.tensor_shape.unknown_rank = draw(st.booleans())


def add_an_input(draw, request):
    request.inputs[draw(st.text(max_size=5))].CopyFrom(next(iter(request.inputs.values())))


def rename_an_input(draw, request):
    proto = request.inputs.pop(draw(st.sampled_from(sorted(request.inputs))))
    request.inputs[draw(st.text(max_size=3))].CopyFrom(proto)


def change_the_model(draw, request):
    request.model_spec.name = draw(st.sampled_from(["toy", "none", ""]))
    request.model_spec.signature_name = draw(st.sampled_from(["", "none", *VALID]))
    if draw(st.booleans()):
        request.model_spec.version.value = draw(int64s)


def change_the_filter(draw, request):
    request.output_filter.extend(draw(st.lists(st.sampled_from(["y", "sum", "z"]), max_size=3)))


CHANGES = [change_a_field] * 6 + [change_a_shape] * 3
CHANGES += [add_an_input, rename_an_input, change_the_model, change_the_filter]


@st.composite
def requests(draw) -> predict_pb2.PredictRequest:
    signature = draw(st.sampled_from(sorted(VALID)))
    request = served.predict_request(signature, VALID[signature])
    for change in draw(st.lists(st.sampled_from(CHANGES), max_size=3)):
        change(draw, request)
    return request


values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
        st.fixed_dictionaries({"b64": st.text(alphabet="ab+/=?", max_size=6)}),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["x", "text", "scale", "b64"]), inner, max_size=3),
    ),
    max_leaves=12,
)  # fmt: skip
BROKEN = [b"", b"[", b"]", b"{", b'"', b",", b"1", b"-1e999", b"null", b"NaN", b"\xff", b"\\ud800",
          b'{"b64": "YQ=="}', b"[[[]]]"]  # fmt: skip


@st.composite
def bodies(draw) -> bytes:
    signature = draw(st.sampled_from(sorted(VALID)))
    columns = {name: array.tolist() for name, array in VALID[signature].items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    body = {"signature_name": signature}
    body |= draw(st.sampled_from([{"inputs": columns}, {"instances": rows}]))
    if draw(st.booleans()):
        body[draw(st.sampled_from(["signature_name", "inputs", "instances"]))] = draw(values)
    text = json.dumps(body).encode()
    if draw(st.booleans()):
        at = draw(st.integers(0, len(text)))
        rest = at + draw(st.integers(0, 3))
        text = text[:at] + draw(st.sampled_from(BROKEN)) + text[rest:]
    return text


paths = st.text(alphabet="/:toyversins123predict%", max_size=20)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    served.write(folder / "models", 1)
    with served.serving(folder, folder / "models") as running:
        yield running
        assert running.program.process.is_alive()
        assert running.predict("double", VALID["double"])["y"].tolist() == [[1.0] * 4]
        assert "Traceback" not in running.program.err


@pytest.mark.slow
def test_predict_protos(server):
    answered = collections.Counter()

    @thorough
    @given(requests())
    def ask(request):
        try:
            server.prediction.Predict(request, timeout=20)
            code = grpc.StatusCode.OK
        except grpc.RpcError as error:
            code = error.code()
            assert error.details() and "\n" not in error.details()
        answered[code.name] += 1
        assert code.name in ("OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION")

    ask()
    print(dict(answered))
    assert answered["OK"] > EXAMPLES / 20
    assert answered["INVALID_ARGUMENT"] > EXAMPLES / 20


@pytest.mark.slow
def test_rest_bodies(server):
    answered = collections.Counter()

    @thorough
    @given(st.one_of(bodies(), bodies(), st.binary(max_size=40)))
    def ask(body):
        answer = server.http.post("/v1/models/toy:predict", content=body)
        answered[answer.status_code] += 1
        assert_json(answer, (200, 400))

    ask()
    print(dict(answered))
    assert answered[200]
    assert answered[400] > EXAMPLES / 20


@pytest.mark.slow
def test_rest_paths(server):
    @thorough
    @given(st.sampled_from(["GET", "POST", "PUT"]), paths)
    def ask(method, path):
        assert_json(server.http.request(method, f"/v1/models/{path}"), (200, 400, 404))

    ask()


def assert_json(answer, codes):
    assert answer.status_code in codes, answer.text
    if answer.status_code >= 400:
        [sentence] = answer.json().values()
        assert sentence and "\n" not in sentence

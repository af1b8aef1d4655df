"""The client's own messages are those of TF Serving on the wire, and need no TensorFlow."""

import subprocess
import sys

import hypothesis
import pytest
from google.protobuf import descriptor_pb2, wrappers_pb2
from google.protobuf.descriptor import FieldDescriptor
from grpc_health.v1 import health_pb2
from hypothesis import strategies as st
from tensorflow.core.framework import tensor_pb2, tensor_shape_pb2, types_pb2
from tensorflow_serving.apis import get_model_status_pb2, model_pb2, predict_pb2, status_pb2

from serving import messages

OFFICIAL = {
    "Dim": tensor_shape_pb2.TensorShapeProto.Dim,
    "TensorShapeProto": tensor_shape_pb2.TensorShapeProto,
    "TensorProto": tensor_pb2.TensorProto,
    "Int64Value": wrappers_pb2.Int64Value,
    "ModelSpec": model_pb2.ModelSpec,
    "PredictRequest": predict_pb2.PredictRequest,
    "PredictResponse": predict_pb2.PredictResponse,
    "GetModelStatusRequest": get_model_status_pb2.GetModelStatusRequest,
    "StatusProto": status_pb2.StatusProto,
    "ModelVersionStatus": get_model_status_pb2.ModelVersionStatus,
    "GetModelStatusResponse": get_model_status_pb2.GetModelStatusResponse,
    "HealthCheckRequest": health_pb2.HealthCheckRequest,
    "HealthCheckResponse": health_pb2.HealthCheckResponse,
}
LEFT_OUT = {
    "TensorProto": {"resource_handle_val", "variant_val"},
    "PredictRequest": {"predict_streamed_options", "client_id", "request_options"},
}
Field = descriptor_pb2.FieldDescriptorProto
INT32, INT64 = (st.integers(-(2**bits), 2**bits - 1) for bits in (31, 63))
VALUES = {
    Field.TYPE_INT32: INT32,
    Field.TYPE_ENUM: INT32,
    Field.TYPE_INT64: INT64,
    Field.TYPE_UINT32: st.integers(0, 2**32 - 1),
    Field.TYPE_UINT64: st.integers(0, 2**64 - 1),
    Field.TYPE_FLOAT: st.floats(width=32, allow_nan=False),
    Field.TYPE_DOUBLE: st.floats(allow_nan=False),
    Field.TYPE_BOOL: st.booleans(),
    Field.TYPE_BYTES: st.binary(),
    Field.TYPE_STRING: st.text(),
}


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def contents(descriptor) -> st.SearchStrategy[dict]:
    """What the constructor of a message takes, for any of the fields of ours."""

    def values(field: FieldDescriptor) -> st.SearchStrategy:
        if is_map(field):
            return st.dictionaries(
                st.text(), contents(field.message_type.fields_by_name["value"].message_type),
                max_size=2,
            )  # fmt: skip
        value = contents(field.message_type) if field.message_type else VALUES[field.type]
        return st.lists(value, max_size=3) if field.is_repeated else value

    def one_choice(content: dict) -> dict:
        chosen = [name for oneof in descriptor.oneofs for name in content if name in
                  {field.name for field in oneof.fields}]  # fmt: skip
        return {name: value for name, value in content.items() if name not in chosen[1:]}

    fields = {field.name: values(field) for field in descriptor.fields}
    return st.fixed_dictionaries({}, optional=fields).map(one_choice)


def plain(message) -> dict:
    """The fields of a message that are set, as Python values."""
    out = {}
    for field, value in message.ListFields():
        if is_map(field):
            out[field.name] = {key: plain(item) for key, item in value.items()}
        elif field.is_repeated:
            out[field.name] = [plain(item) if field.message_type else item for item in value]
        else:
            out[field.name] = plain(value) if field.message_type else value
    return out


def ours(name: str):
    return messages._CLASSES[name]


def test_all_messages_are_compared():
    assert set(OFFICIAL) == set(messages._CLASSES)


@pytest.mark.parametrize("name", OFFICIAL)
def test_a_message_has_the_fields_of_the_public_one(name):
    def fields(descriptor) -> dict:
        return {
            field.name: (
                field.number,
                FieldDescriptor.TYPE_INT32 if field.type == Field.TYPE_ENUM else field.type,
                field.is_repeated,
                field.message_type and field.message_type.name,
                is_map(field),
                field.containing_oneof and [each.name for each in field.containing_oneof.fields],
            )
            for field in descriptor.fields
        }

    public = fields(OFFICIAL[name].DESCRIPTOR)
    kept = {key: public[key] for key in public.keys() - LEFT_OUT.get(name, set())}
    assert fields(ours(name).DESCRIPTOR) == kept


@pytest.mark.parametrize("name", OFFICIAL)
@hypothesis.settings(max_examples=50, deadline=None)
@hypothesis.given(data=st.data())
def test_content_is_the_same_on_both_sides(name, data):
    content = data.draw(contents(ours(name).DESCRIPTOR))
    mine, theirs = ours(name)(**content), OFFICIAL[name](**content)
    assert plain(mine) == plain(theirs)
    assert mine.SerializeToString(deterministic=True) == theirs.SerializeToString(
        deterministic=True
    )
    assert OFFICIAL[name].FromString(mine.SerializeToString()) == theirs
    assert ours(name).FromString(theirs.SerializeToString()) == mine


def test_a_version_and_a_label_replace_each_other():
    spec = messages.ModelSpec(version={"value": 3})
    spec.version_label = "stable"
    assert not spec.HasField("version")
    public = model_pb2.ModelSpec.FromString(spec.SerializeToString())
    assert public.WhichOneof("version_choice") == "version_label"


def test_fields_that_are_left_out_survive():
    sent = predict_pb2.PredictRequest(client_id=b"me", inputs={"x": tensor_pb2.TensorProto()})
    received = messages.PredictRequest.FromString(sent.SerializeToString())
    assert predict_pb2.PredictRequest.FromString(received.SerializeToString()) == sent


def test_numbers_of_types_and_states():
    public = dict(types_pb2.DataType.items())
    assert {each.name: each.value for each in messages.DataType}.items() <= public.items()
    states = dict(get_model_status_pb2.ModelVersionStatus.State.items())
    assert {each.name: each.value for each in messages.State} == states


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["serving.client", "serving.commands", "mrnn_tf.photos"])
def test_neither_keras_nor_tensorflow_is_loaded(module):
    heavy = "('keras', 'tensorflow', 'tensorflow_serving')"
    assert run(f"import sys, {module}; print([n for n in {heavy} if n in sys.modules])") == "[]"


OURS = "from serving import messages, tensors"
THEIRS = "import tensorflow as tf; from tensorflow_serving.apis import predict_pb2"


@pytest.mark.parametrize("imports", [(OURS, THEIRS), (THEIRS, OURS)], ids=["before", "after"])
def test_tensorflow_is_loaded_beside_it(imports):
    code = """
import numpy as np
request = messages.PredictRequest(inputs={"x": tensors.to_proto(np.float32([1, 2]))})
public = predict_pb2.PredictRequest.FromString(request.SerializeToString())
print(tf.make_ndarray(public.inputs["x"]) + tf.ones(2).numpy())
"""
    assert run("\n".join([*imports, code])) == "[2. 3.]"

"""The client against a real gRPC server on the loopback."""

import io
import socket
import threading
import time

import grpc
import numpy as np
import pytest
import tensorflow as tf
from answering import VERSION, answering
from PIL import Image
from tensorflow.core.framework import tensor_pb2

from mrnn_tf import schema
from serving import channel as channels
from serving.client import Client, ServingError


@pytest.fixture
def server():
    with answering() as running:
        yield running


@pytest.fixture
def client(server):
    with Client(server.address, timeout=10) as connected:
        yield connected


def photo(width: int, height: int = 10) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(content, "PNG")
    return content.getvalue()


def test_captions_of_photos_leave_out_what_is_missing(client, server):
    good, bad = client.caption([photo(12), b"no image"])
    assert good == {"captions": ["a 12 by 10 photo"], "log_probs": [-1.5]}
    assert bad == {"captions": [], "log_probs": []}
    assert server.asked == [("caption", 2)]


def test_captions_of_features_are_those_of_an_empty_prefix(client, server):
    rows = client.caption(np.float32([[1, 2, 3], [4, 5, 6]]))
    assert rows == [{"captions": [" runs"], "log_probs": [-float(n)]} for n in (1, 4)]
    assert server.asked == [("beam_decode", 2)]


def test_a_beam_that_goes_on_from_a_prefix(client, server):
    [row] = client.beam([photo(12)], ["ein großer Hund"])
    assert row == {
        "captions": ["ein großer Hund runs"], "log_probs": [-12.0],
        "words": [["runs", "</s>"]], "word_log_probs": [[-1.0, -2.0]],
        "word_evidence": [[0.5, 0.0]],
    }  # fmt: skip
    assert server.asked == [("encode_image", 1), ("beam_decode", 1)]


def test_next_words(client):
    rows = client.next_words(np.zeros([2, 3], np.float32), ["a dog", ""])
    assert [row["words"] for row in rows] == [["dog", "größe"], ["</s>", "größe"]]
    assert rows[0]["log_probs"] == [-0.5, -1.0]


def test_scores_end_with_the_sentence(client):
    short, long = client.score([photo(2), photo(2)], ["a", "a zyx dog runs"])
    assert short["word_log_probs"] == [-1.0, -1.0]
    assert long["word_log_probs"] == [-1.0] * 5
    assert (long["num_words"], long["num_unknown"], long["log_prob"]) == (5, 1, -2.0)
    assert short["perplexity"] == pytest.approx(np.e)


def test_searches(client, server):
    assert client.search_images(["dog", "cat"]) == [
        {"ids": [f"{name}.jpg"], "scores": [2.5]} for name in ("dog", "cat")
    ]
    assert client.search_prefix(["a dog"]) == [
        {"ids": ["a dog.jpg"], "scores": [2.5], "word_scores": [[-1.5, -1.0]]}
    ]
    assert client.search_sentences([photo(9)]) == [
        {"sentences": ["9 wide", "other"], "ids": ["one.jpg", "two.jpg"], "scores": [3.0, 1.0]}
    ]
    assert client.similar_images([photo(9)]) == [{"ids": ["9.jpg"], "scores": [-0.5]}]
    assert client.caption_reranked(np.array([[9, 1, 1]], np.float32)) == [
        {"captions": ["9 wide", "a dog"], "log_probs": [-3.0, -2.0], "consensus": [1.5, 1.0]}
    ]
    assert [name for name, _ in server.asked] == [
        "search_images", "search_prefix", "encode_image", "search_sentences", "model_info",
        "model_info", "encode_image", "similar_images", "caption_reranked",
    ]  # fmt: skip


def test_versions_are_compared_that_have_answered(client, server):
    """While servers are replaced one by one, each question may reach another version."""
    server.rolling = {"encode_image": 1, "similar_images": 2, "model_info": 2}
    with pytest.raises(ServingError, match=r"made with the model model of 2, but .* model of 1:"):
        client.similar_images([photo(9)])
    server.rolling = {"encode_image": 2, "similar_images": 2, "model_info": 1}
    assert client.similar_images([photo(9)]) == [{"ids": ["9.jpg"], "scores": [-0.5]}]


def test_a_version_that_was_replaced_meanwhile_is_not_an_error(client, server):
    server.rolling = {"encode_image": 1}
    refused = grpc.StatusCode.NOT_FOUND, "Servable not found: Specific(mrnn, 1)"
    original = server._similar_images

    def replace(features):
        server.rolling, server._similar_images = {}, original
        server.refusals = [refused]
        return original(features)

    server._similar_images = replace
    assert client.similar_images([photo(9)]) == [{"ids": ["9.jpg"], "scores": [-0.5]}]
    assert [name for name, _ in server.asked].count("encode_image") == 2


def test_a_model_and_an_index_may_have_servers_of_their_own(server):
    with answering() as other, Client(server.address, index_server=other.address) as client:
        server.missing, other.missing = {"mrnn_index"}, {"mrnn"}
        assert client.similar_images([photo(9)]) == [{"ids": ["9.jpg"], "scores": [-0.5]}]
        assert client.status() == {"mrnn": {7: "AVAILABLE"}, "mrnn_index": {7: "AVAILABLE"}}
        other.missing = {"mrnn_index"}
        with pytest.raises(ServingError, match=f"{other.address} does not serve mrnn_index"):
            client.search_images(["a dog"])


def test_a_model_and_an_index_of_earlier_releases_are_not_compared(client, server):
    server.missing = {"model_info"}
    assert client.similar_images([photo(9)]) == [{"ids": ["9.jpg"], "scores": [-0.5]}]
    assert client.fingerprints("mrnn_index") == {}


def test_photos_are_sent_byte_by_byte(client):
    features = client.encode([photo(5) + b"\x00\x00", photo(6)])[schema.FEATURES]
    np.testing.assert_array_equal(features, [[5, 10, 255], [6, 10, 255]])


def test_messages_may_be_larger_than_grpc_allows_by_default(client, server):
    server.refined_size = 2_000_000
    large = photo(4) + bytes(5_000_000)
    assert client.encode([large])[schema.REFINED].shape == (1, 2_000_000)


def test_an_unavailable_server_is_asked_again(client, server):
    server.refusals = [(grpc.StatusCode.UNAVAILABLE, "busy")] * 2
    begin = time.monotonic()
    assert client.caption([photo(3)])[0]["captions"] == ["a 3 by 10 photo"]
    assert time.monotonic() - begin > 0.8 * (0.2 + 0.4)
    assert len(server.asked) == 3


def test_retries_are_counted(server):
    server.refusals = [(grpc.StatusCode.UNAVAILABLE, "busy")] * 9
    with (
        Client(server.address, retries=1) as client,
        pytest.raises(ServingError, match=f"no server answers at {server.address}: busy"),
    ):
        client.caption([photo(3)])
    assert len(server.asked) == 2


def test_grpc_makes_five_attempts_at_most(server, capfd):
    server.refusals = [(grpc.StatusCode.UNAVAILABLE, "busy")] * 9
    with Client(server.address, retries=7) as client, pytest.raises(ServingError, match="busy"):
        client.caption([photo(3)])
    assert len(server.asked) == 1 + channels.MAX_RETRIES == 5
    assert capfd.readouterr().err == ""


def test_no_retries(server):
    server.refusals = [(grpc.StatusCode.UNAVAILABLE, "busy")]
    with Client(server.address, retries=0) as client, pytest.raises(ServingError, match="busy"):
        client.caption([photo(3)])
    assert len(server.asked) == 1


def test_a_large_request_is_asked_again_too(client, server):
    server.refusals = [(grpc.StatusCode.UNAVAILABLE, "busy")]
    assert client.caption([photo(3) + bytes(5_000_000)])[0]["captions"] == ["a 3 by 10 photo"]
    assert len(server.asked) == 2


def test_an_answer_that_cannot_be_read_is_the_servers_fault(client, monkeypatch):
    absurd = tensor_pb2.TensorProto(dtype="DT_FLOAT", tensor_shape={"dim": [{"size": 2**40}]})
    monkeypatch.setattr("answering.tf.make_tensor_proto", lambda _: absurd)
    with pytest.raises(ServingError, match=r"caption of mrnn with a bad tensor: .* larger than"):
        client.caption([photo(3)])


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED], ids=lambda c: c.name
)
def test_other_errors_are_not_asked_again(client, server, code):
    server.refusals = [(code, "went\nwrong")]
    with pytest.raises(ServingError, match="refused caption of mrnn: went wrong") as caught:
        client.caption([photo(3)])
    assert caught.value.code is code
    assert len(server.asked) == 1


def test_the_deadline_holds_for_a_slow_answer(server):
    server.delay = 3
    begin = time.monotonic()
    with (
        Client(server.address, timeout=0.5) as client,
        pytest.raises(ServingError, match=r"did not answer caption of mrnn within .* of 0\.5 s"),
    ):
        client.caption([photo(3)])
    assert time.monotonic() - begin < 2


def test_the_deadline_holds_for_all_retries_together(server):
    server.refusals = [(grpc.StatusCode.UNAVAILABLE, "busy")] * 99
    begin = time.monotonic()
    with Client(server.address, timeout=1, retries=99) as client, pytest.raises(ServingError):
        client.caption([photo(3)])
    assert time.monotonic() - begin < 2


def test_no_server():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with (
            Client(address, retries=1) as client,
            pytest.raises(ServingError, match=f"^no server answers at {address}: "),
        ):
            client.status()


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


def test_a_server_that_is_starting_is_waited_for():
    port, said, stop = free_port(), [], threading.Event()

    def start_late():
        time.sleep(1.5)
        with answering(port=port):
            stop.wait(30)

    thread = threading.Thread(target=start_late)
    thread.start()
    address = f"127.0.0.1:{port}"
    try:
        with Client(address, timeout=30, on_wait=said.append) as client:
            assert client.search_images(["dog"])[0]["ids"] == ["dog.jpg"]
            assert client.search_images(["cat"])[0]["ids"] == ["cat.jpg"]
    finally:
        stop.set()
        thread.join()
    assert said == [f"waiting for a server at {address}, up to 30 s"]


@pytest.mark.parametrize("state", ["loading", "unready"])
@pytest.mark.parametrize("version", [None, 7, "stable"])
def test_a_model_that_is_being_loaded_is_waited_for(server, state, version):
    setattr(server, state, 3)
    said = []
    settings = {"versions": {"mrnn": version} if version else {}, "on_wait": said.append}
    with Client(server.address, timeout=30, **settings) as client:
        assert client.caption([photo(3)])[0]["captions"] == ["a 3 by 10 photo"]
    assert said == [f"waiting until mrnn is loaded at {server.address}, up to 30 s"]


def test_waiting_ends_with_the_timeout(server):
    begin, said = time.monotonic(), []
    for address, sentence in (
        (f"127.0.0.1:{free_port()}", "no server answers at"),
        (server.address, "does not serve mrnn: Servable not found"),
    ):
        server.loading = 999
        settings = {"timeout": 1.5, "retries": 0, "on_wait": said.append}
        with Client(address, **settings) as client, pytest.raises(ServingError, match=sentence):
            client.caption([photo(3)])
    assert len(said) == 2 and time.monotonic() - begin < 20


def test_only_what_is_being_loaded_is_waited_for(server):
    said = []
    server.missing = {"mrnn_index"}
    with (
        Client(server.address, on_wait=said.append) as client,
        pytest.raises(ServingError, match="does not serve mrnn_index"),
    ):
        client.search_images(["a"])
    server.loading = 1
    with Client(server.address) as client, pytest.raises(ServingError, match="not serve mrnn"):
        client.caption([photo(3)])
    assert said == []


def put(name, value):
    """Changes an output of an answer."""

    def change(response):
        response.outputs[name].CopyFrom(tf.make_tensor_proto(value))

    return change


def lie(response):
    """A tensor of a few bytes whose shape is that of half a gigabyte."""
    scores = response.outputs["scores"]
    scores.ClearField("tensor_content")
    scores.tensor_shape.dim[1].size = 1 << 27


def empty_but_wide(response):
    response.outputs["ids"].string_val[:] = []
    for dim, size in zip(response.outputs["ids"].tensor_shape.dim, (0, 2**62), strict=True):
        dim.size = size


ODD = {
    "missing": (lambda r: r.outputs.pop("scores"), "the output scores is missing"),
    "all missing": (lambda r: r.outputs.clear(), "the output ids is missing"),
    "type": (put("scores", [["a", "b"]]), r"scores must be float \[1, 2\], and it is string"),
    "ints": (put("ids", [[1, 2]]), r"ids must be string \[1, 2\], and it is int32 \[1, 2\]"),
    "rank": (put("ids", ["a"]), r"ids must be string \[1, N\], and it is string \[1\]"),
    "scalar": (put("scores", 1.0), r"scores must be float \[1, 2\], and it is float32 \[\]"),
    "more rows": (put("ids", [["a"], ["b"]]), r"ids must be string \[1, 1\].*\[2, 1\]"),
    "no rows": (put("ids", np.empty([0, 2], object)), r"ids must be string \[1, 2\]"),
    "columns": (put("scores", np.ones([1, 5], np.float32)), r"scores must be float \[1, 2\]"),
    "dimensions": (put("ids", np.full([1] * 30, b"a", object)), "30 dimensions are not"),
    "lie": (lie, "needs 134217728 values, and it holds another number"),
    "wide": (empty_but_wide, r"there are no arrays of shape \[0, 4611686018427387904\]"),
}


@pytest.mark.parametrize("case", ODD)
def test_an_odd_answer_is_the_servers_fault(client, server, case):
    server.change, sentence = ODD[case]
    begin = f"^{server.address} answered search_images of mrnn_index with a bad tensor: "
    with pytest.raises(ServingError, match=f"{begin}.*{sentence}"):
        client.search_images(["a"])


@pytest.mark.parametrize("count", [-1, 4])
def test_counts_of_words_are_checked(client, server, count):
    server.change = put("num_words", np.int32([count]))
    with pytest.raises(ServingError, match="the output num_words must be from 0 to 3"):
        client.score(np.ones([1, 3], np.float32), ["a dog"])


def test_more_outputs_than_are_known_are_left_out(client, server):
    server.change = put("novel", np.ones([5, 5, 5]))
    assert client.search_images(["a"]) == [{"ids": ["a.jpg"], "scores": [2.5]}]


def test_answers_have_a_limit(client, server):
    server.refined_size = channels.MAX_ANSWER_BYTES // 4
    with pytest.raises(ServingError, match=r"refused encode_image of mrnn: .*larger than max"):
        client.encode([photo(4)])


def test_an_unknown_state_is_named(client, server, monkeypatch):
    monkeypatch.setattr(channels.messages, "State", {})
    assert client.status()["mrnn"] == {VERSION: "state 30"}


def test_versions_and_labels(server):
    for version in (VERSION, "stable"):
        with Client(server.address, versions={"mrnn": version}) as client:
            assert client.caption([photo(3)])[0]["captions"]
            assert client.search_images(["a"])[0]["ids"]
    for version in (8, "canary"):
        with (
            Client(server.address, versions={"mrnn": version}) as client,
            pytest.raises(ServingError, match=rf"does not serve mrnn \(version {version}\)"),
        ):
            client.caption([photo(3)])


def test_an_unknown_model(client, server):
    server.missing = {"mrnn_index"}
    with pytest.raises(ServingError, match="does not serve mrnn_index: Servable not found"):
        client.search_images(["a"])


@pytest.mark.parametrize("signature", ["caption", "encode_image"])
def test_a_model_without_an_encoder(client, server, signature):
    server.missing = {signature}
    ask = client.caption if signature == "caption" else client.search_sentences
    with pytest.raises(ServingError, match=rf"{signature}; it was exported without an .*\.npy"):
        ask([photo(3)])


def test_an_older_model(client, server):
    server.missing = {"next_word"}
    with pytest.raises(ServingError, match="has no signature next_word; it is an older model"):
        client.next_words(np.zeros([1, 3], np.float32), [""])


def test_an_output_that_is_not_found_is_no_missing_signature(client, server):
    said = "output tensor alias not found in signature: x"
    server.refusals = [(grpc.StatusCode.INVALID_ARGUMENT, said)]
    with pytest.raises(ServingError, match=f"refused caption of mrnn: {said}"):
        client.caption([photo(3)])


def test_status(client, server):
    assert client.status() == {"mrnn": {VERSION: "AVAILABLE"}, "mrnn_index": {VERSION: "AVAILABLE"}}
    server.missing = {"mrnn_index"}
    assert client.status()["mrnn_index"] == {}


def test_all_addresses_of_a_name_are_used():
    assert ("grpc.lb_policy_name", "round_robin") in channels._OPTIONS
    with answering() as one, answering() as two:
        ports = ",".join(server.address for server in (one, two))
        with Client(f"ipv4:{ports}", timeout=10) as client:
            deadline = time.monotonic() + 10
            while not (one.asked and two.asked) and time.monotonic() < deadline:
                client.search_images(["a"])
        assert one.asked and two.asked

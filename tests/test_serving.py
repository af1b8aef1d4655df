"""From a trained run to sentences over the network: the real export behind the real server."""

import base64
import json
from pathlib import Path

import bombs
import grpc
import memory
import numpy as np
import phone
import programs
import pytest
import served
import tiny

from export import check, warmup
from mrnn_tf import schema
from mrnn_tf.config import BeamSearch
from mrnn_tf.errors import UserError
from mrnn_tf.inference import Inference
from mrnn_tf.retrieval.index import Index
from mrnn_tf.retrieval.milvus import MilvusStore
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.sentences import pad, read
from mrnn_tf.run import Run
from serving.client import Client

SIGNATURES = (
    "caption", "beam_decode", "next_word", "sentence_log_prob", "encode_image", "caption_examples",
    "sentence_vector", "score_images", "score_projections", "serving_default",
)  # fmt: skip


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    # The limits of the graph are tested here: the server lets more rows and longer texts through.
    flags = ("--max_rows=4000", f"--max_text_bytes={1 << 25}")
    with served.serving(tmp_path_factory.mktemp("serving"), models, *flags) as running:
        yield running


@pytest.fixture(scope="module")
def trained(photo_job, lite0):
    return Inference(Run.load(photo_job), lite0, BeamSearch(beam=3, max_words=10))


def as_json(value):
    return {"b64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


@pytest.mark.parametrize("signature", SIGNATURES)
def test_grpc_and_rest_say_what_the_python_model_says(server, trained, signature):
    [(_, inputs)] = warmup.calls(trained, 3, [signature])
    expected = check.expected(trained, signature, inputs)
    by_grpc = server.predict(signature, inputs, name="mrnn")
    columns = {name: [as_json(each) for each in value.tolist()] for name, value in inputs.items()}
    body = {"signature_name": signature, "inputs": columns}
    answer = server.http.post("/v1/models/mrnn:predict", json=body)
    assert answer.status_code == 200, answer.text
    by_rest = answer.json()["outputs"]
    if isinstance(by_rest, list):  # as TF Serving writes a single output
        by_rest = dict(zip(expected, [by_rest], strict=True))
    for name, value in expected.items():
        assert check.same(by_grpc[name], value), name
        said = np.array(by_rest[name])
        if value.dtype.kind == "S":
            assert said.tolist() == np.char.decode(value).tolist()
        else:
            np.testing.assert_allclose(said, value, rtol=1e-4, atol=1e-4)


def test_a_photograph_by_rest_in_rows(server):
    rows = [{"b64": base64.b64encode(tiny.picture(colour)).decode()} for colour in range(3)]
    answer = server.http.post("/v1/models/mrnn:predict", json={"instances": rows}).json()
    for colour, row in zip(tiny.COLOURS, answer["predictions"], strict=True):
        assert colour in row["captions"][0]


def rest_rows(server, signature, contents):
    rows = [{"b64": base64.b64encode(content).decode()} for content in contents]
    body = {"signature_name": signature, "instances": rows}
    return server.http.post("/v1/models/mrnn:predict", json=body).json()["predictions"]


def test_a_photograph_is_the_same_in_all_eight_orientations(server):
    def ask(signature, contents):
        return server.predict(signature, {"image_bytes": np.array(contents, object)}, name="mrnn")

    features = ask("encode_image", phone.PHOTOGRAPHS)["features"]
    stored = ask("encode_image", phone.STORED)["features"]
    difference = np.linalg.norm(features - features[0], axis=1)
    assert difference.max() < 0.2 * np.linalg.norm(stored[1:] - stored[0], axis=1).min()
    captions = ask("caption", phone.PHOTOGRAPHS)["captions"]
    assert captions[0, 0] and (captions == captions[0]).all()
    rest = rest_rows(server, "encode_image", phone.PHOTOGRAPHS)
    np.testing.assert_allclose([row["features"] for row in rest], features, rtol=1e-3, atol=1e-3)
    for row in rest_rows(server, "caption", phone.PHOTOGRAPHS):
        assert row["captions"] == np.char.decode(captions[0].astype("S")).tolist()


def peak_growth(server, ask):
    """By how many MB the memory of the server grows at most while something is asked."""
    return memory.peak_growth(ask, server.program.process.pid)


@memory.needed
def test_large_images_and_empty_rows_cost_no_memory(server):
    def caption(contents):
        inputs = {"image_bytes": np.array(contents, object)}
        return lambda: server.predict("caption", inputs, name="mrnn")["captions"]

    pictures = [tiny.picture(colour) for colour in range(3)]
    caption(pictures)()
    gif = bombs.gif(2500, 600)
    batch = [pictures[0], bombs.png(30_000, 30_000), pictures[1], gif, pictures[2]]
    growth, captions = peak_growth(server, caption(batch))
    assert growth < 200
    assert captions[1].tolist() == [b""] * 3
    for row, colour in ((0, b"red"), (2, b"green"), (3, b"red"), (4, b"blue")):
        assert colour in captions[row, 0]
    exif = phone.tag(6)
    strips = [bombs.png(1_000_000, 1), bombs.png(1, 1_000_000, exif)] * 2
    strips += [bombs.png(65_535, 1), bombs.png(1, 65_535, exif), phone.strip(65_500, 6)] * 2
    growth, captions = peak_growth(server, caption([pictures[2], *strips]))
    assert growth < 200
    assert b"blue" in captions[0, 0] and not captions[1:5].any() and captions[5:].all()
    growth, captions = peak_growth(server, caption([pictures[2], *[b""] * 3000]))
    assert growth < 200
    assert b"blue" in captions[0, 0] and not captions[1:].any()


def test_the_client_asks_it(server, tmp_path):
    photo, broken = tmp_path / "blue.png", tmp_path / "broken.png"
    photo.write_bytes(tiny.picture(2))
    broken.write_bytes(b"no image")

    def ask(*arguments):
        flags = ("--server", server.address, "--json")
        return programs.run(tmp_path, "serving.client", *arguments, *flags)

    done = ask("caption", photo, broken)
    assert done.code == 1 and "1 of 2 inputs failed" in done.error
    good, bad = map(json.loads, done.out.splitlines())
    assert "blue" in good["captions"][0] and "no image" in bad["error"]
    [found] = map(json.loads, ask("next", photo, "everything is").out.splitlines())
    assert found["words"][0] == "blue"
    blue, red = map(
        json.loads, ask("score", photo, "a blue picture", "a red picture").out.splitlines()
    )
    assert blue["log_prob"] > red["log_prob"] + 1
    [begun] = map(json.loads, ask("beam", photo, "Everything").out.splitlines())
    assert begun["captions"][0].startswith("Everything is blue")
    [encoded] = map(json.loads, ask("encode", photo).out.splitlines())
    assert len(encoded[schema.FEATURES]) == 1280
    state = ask("status")
    assert state.code == 0 and '"1": "AVAILABLE"' in state.out
    missing = ask("search", "a blue picture")
    assert missing.code == 1 and "does not serve mrnn_index" in missing.error


@pytest.fixture(scope="module")
def index_server(searchable_models, tmp_path_factory):
    with served.serving(tmp_path_factory.mktemp("serving"), searchable_models) as running:
        yield running


def by_rest(server, name, signature, inputs):
    body = {"signature_name": signature, "inputs": inputs}
    answer = server.http.post(f"/v1/models/{name}:predict", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["outputs"]


def test_searches_over_the_network_find_what_the_library_finds(index_server, tiny_index):
    run = Run.from_saved_model(str(tiny_index))
    index = Index.load(str(tiny_index / "assets.extra" / "index"), run.fingerprint)
    scorer = Scorer(run.network.model)
    asked = ["a green cat", "there is a blue boat here", ""]
    words = pad(run.vocabulary.ids(asked).to_list())
    scores = scorer.matrix(read(run.network.model, words), np.asarray(index.images))
    best = [[index.ids[i].decode() for i in row] for row in np.argsort(-scores)[:2, :5]]
    inputs = {"sentences": np.array(asked, object)}
    found = server_ids(index_server.predict("search_images", inputs, name="tiny_index"))
    assert found == [*best, [""] * 5]
    assert by_rest(index_server, "tiny_index", "search_images", asked)["ids"] == found

    features = np.random.default_rng(1).random((2, 12), np.float32)
    sentences = read(run.network.model, np.asarray(index.words))
    scores = scorer.matrix(sentences, scorer.project(features)).T - index.log_marginals
    best = -np.sort(-scores)[:, :5]
    found = index_server.predict("search_sentences", {"features": features}, name="tiny_index")
    np.testing.assert_allclose(found["scores"], best, rtol=1e-4, atol=1e-4)
    rest = by_rest(index_server, "tiny_index", "search_sentences", features.tolist())
    assert rest["ids"] == server_ids(found)
    assert rest["sentences"] == np.char.decode(found["sentences"].astype("S")).tolist()


def server_ids(answer):
    return np.char.decode(answer["ids"].astype("S")).tolist()


def test_a_wrong_feature_size_is_refused(index_server):
    for signature in ("search_sentences", "similar_images", "caption_reranked"):
        with pytest.raises(grpc.RpcError) as refused:
            index_server.predict(signature, {"features": np.ones((1, 7), np.float32)},
                                 name="tiny_index")  # fmt: skip
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    body = {"signature_name": "similar_images", "inputs": [[1.0, 2.0]]}
    assert index_server.http.post("/v1/models/tiny_index:predict", json=body).status_code == 400


def test_the_client_searches(index_server, tmp_path):
    photo = tmp_path / "blue.png"
    photo.write_bytes(tiny.picture(2))

    def ask(*arguments):
        flags = ("--server", index_server.address, "--json")
        done = programs.run(tmp_path, "serving.client", *arguments, *flags)
        assert done.code == 0, done.err
        return [json.loads(line) for line in done.out.splitlines()]

    found, nothing = ask("search", "Everything is blue here", "zxqv")
    assert set(found["ids"][:2]) == {"2.png", "5.png"} and nothing["ids"] == []
    [said] = ask("sentences", photo)
    assert said["sentences"][0] == "All of it is blue" and said["ids"][0] in ("2.png", "5.png")
    [near] = ask("similar", photo)
    assert set(near["ids"][:2]) == {"2.png", "5.png"} and abs(near["scores"][0]) < 1e-2
    [captions] = ask("rerank", photo)
    assert "blue" in captions["captions"][0]


def test_every_image_is_scored_by_every_sentence(server):
    features = np.random.default_rng(1).random((2, 12), np.float32)
    inputs = {"features": features, "sentences": ["a red dog", "a cat", "a green boat"]}
    found = server.predict("score_images", inputs, name="plain")["log_probs"]
    assert found.shape == (2, 3)
    each = {"features": features[[1]], "sentences": ["a cat"]}
    expected = server.predict("sentence_log_prob", each, name="plain")["log_prob"]
    assert found[1, 1] == pytest.approx(expected[0], rel=1e-4)


@pytest.mark.filterwarnings("ignore")  # Beam's own, at its import
def test_the_client_searches_in_a_store(index_server, searchable_models, tmp_path):
    from export.index import build_index
    from export.options import IndexOptions

    places = {"data": tiny.write_pictures(str(tmp_path / "data")), "uri": tmp_path / "photos.db"}
    lines = [json.dumps({"id": f"{i}.png", "half": "first" if i < 3 else "last"}) for i in range(6)]
    (tmp_path / "halves.jsonl").write_text("\n".join(lines))
    model, halves = searchable_models / "mrnn", tmp_path / "halves.jsonl"
    build_index(IndexOptions(store="milvus", model=model, metadata=halves, **places))

    def ask(*arguments, store=places["uri"]):
        flags = ("--server", index_server.address, "--json", "--store", store)
        return programs.run(tmp_path, "serving.client", *arguments, *flags)

    asked = ("search", "Everything is blue here", "zxqv", "")
    done = ask(*asked, "--k=3")
    assert (done.code, done.err) == (0, ""), done.err
    found, *nothing = map(json.loads, done.out.splitlines())
    served = programs.run(
        tmp_path, "serving.client", *asked, "--server", index_server.address, "--json"
    )
    expected, *_ = map(json.loads, served.out.splitlines())
    assert found["ids"] == expected["ids"] and len(found["ids"]) == 3
    assert found["scores"] == pytest.approx(expected["scores"], rel=1e-4)
    assert [row["ids"] for row in nothing] == [[], []]
    [last] = map(json.loads, ask(*asked[:2], "--filter", 'half == "last"').out.splitlines())
    assert last["ids"][0] == "5.png" and {*last["ids"]} == {"3.png", "4.png", "5.png"}
    for arguments, sentence in (
        ((*asked[:2], "--filter", "half ="), "refused the filter 'half ='"),
        (("similar", "x.png"), "--store is for search: similar asks the server alone"),
    ):
        done = ask(*arguments)
        assert done.code == 1 and sentence in done.error and done.err.count("\n") == 1
    down = ask(*asked[:2], store="http://127.0.0.1:1")
    assert down.code == 1 and "No Milvus answers at http://127.0.0.1:1" in down.error
    with MilvusStore.open(str(places["uri"])) as store, Client(index_server.address) as client:
        store.facts["model"] = "another"
        with pytest.raises(
            UserError, match=r"photos\.db: The index was made with the model another"
        ):
            client.search_store(store, ["a blue picture"])


def test_the_client_asks_for_labels_of_the_deployed_configuration(searchable_models, tmp_path):
    deployed = Path(__file__).parent.parent / "serving/deploy/tf_serving/models.config"
    config, photo = tmp_path / "models.config", tmp_path / "blue.png"
    config.write_text(deployed.read_text().replace('"/models/', f'"{searchable_models}/'))
    photo.write_bytes(tiny.picture(2))
    with served.serving(tmp_path, config) as server:

        def ask(*arguments):
            flags = ("--server", server.address, "--json")
            return programs.run(tmp_path, "serving.client", *arguments, *flags)

        for version in ("stable", "canary", "1"):
            done = ask("rerank", photo, f"--version={version}", f"--index_version={version}")
            assert done.code == 0 and "blue" in json.loads(done.out)["captions"][0], done.err
        wrong = ask("caption", photo, "--version=old")
        assert wrong.code == 1 and "Unrecognized servable version label: old" in wrong.out
        wrong = ask("search", "a blue picture", "--index_version=2")
        assert wrong.code == 1 and "Specific(mrnn_index, 2)" in wrong.error
        good = server.predict("", {"image_bytes": [tiny.picture(2)]}, name="mrnn", label="stable")
        assert b"blue" in good["captions"][0, 0]

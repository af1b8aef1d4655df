"""What the explorer answers the page, over a real model, a real folder and a real server."""

import contextlib
import dataclasses
import itertools
import json
import os
import threading
from pathlib import Path

import bombs
import explored
import httpx
import pytest
import served
import tensorflow as tf
import tiny
from starlette.testclient import TestClient

from mrnn_tf.captioner import Captioner
from mrnn_tf.errors import UserError
from mrnn_tf.photo_index.folder import FolderIndex
from serving.explorer import app, server
from serving.explorer.explorer import Explorer
from serving.explorer.in_process import InProcess
from serving.explorer.options import ExplorerOptions
from serving.explorer.photographs import Photographs
from serving.limits import Uploads

MAX_BYTES = 1 << 20


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("home")
        patch.setenv("XDG_DATA_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Photographs, a link out of the folder, and a secret beside it."""
    folder = explored.write_photographs(tmp_path_factory.mktemp("photographs") / "folder")
    secret = folder.parent / "secret.png"
    secret.write_bytes(tiny.picture(0))
    (folder / "link.png").symlink_to(secret)
    (folder / "<script>alert(1)<.png").write_bytes(tiny.picture(1))
    return folder


@pytest.fixture(scope="module")
def options(searchable_models, folder):
    model = str(searchable_models / "mrnn")
    return ExplorerOptions(model=model, photos=str(folder), max_picture_bytes=MAX_BYTES)


@pytest.fixture(scope="module")
def explorer(options, home):
    explorer = server.create_explorer(options)
    served.wait_for(lambda: explorer.state()["photographs"]["photographs"] == 11)
    yield explorer
    explorer.close()


def client_of(explorer: Explorer, options: ExplorerOptions) -> TestClient:
    created = app.create(explorer, options, Uploads(4 * MAX_BYTES, 20.0, 8))
    return TestClient(created, base_url="http://127.0.0.1:8600", raise_server_exceptions=False)


@pytest.fixture(scope="module")
def page(explorer, options):
    return client_of(explorer, options)


@pytest.fixture(scope="module")
def red(page):
    """The name of a red picture that was sent."""
    return page.post("/api/pictures", content=tiny.picture(0)).json()["picture"]


def ask(page: TestClient, path: str, **parameters) -> dict:
    answer = page.get(f"/api/{path}", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(answer, code: int) -> str:
    """The one sentence of an answer that refuses."""
    assert answer.status_code == code, answer.text
    [sentence] = answer.json().values()
    assert "Traceback" not in sentence and "\n" not in sentence
    return sentence


# What the page asks


def test_captions_are_those_of_the_captioner(page, red, explorer):
    answer = ask(page, "captions", picture=red)
    expected = explorer.captioner.caption(tiny.picture(0))
    assert [caption["text"] for caption in answer["captions"]] == [c.text for c in expected]
    [first, *_], [best, *_] = answer["captions"], expected
    assert first["log_prob"] == pytest.approx(best.log_prob, abs=1e-4)
    assert [word["text"] for word in first["words"]] == [word.text for word in best.words]
    reds = {word["text"]: word["evidence"] for word in first["words"]}
    assert reds["red"] > 0.3
    texts = [caption["text"] for caption in answer["reranked"]]
    assert all("red" in text for text in texts[:1]) and answer["reranked"][0]["consensus"] >= 0


def test_a_sentence_goes_on_from_its_beginning(page, red):
    words = ask(page, "next", picture=red, prefix="everything is")["words"]
    assert words[0]["text"] == "red" and 0 < words[0]["probability"] <= 1
    answer = ask(page, "captions", picture=red, prefix="everything is blue")
    assert answer["reranked"] is None
    assert all(c["text"].startswith("everything is blue") for c in answer["captions"])
    long = page.get("/api/captions", params={"picture": red, "prefix": "red " * 300})
    assert "more than 200 words" in refusal(long, 400)


def test_search_goes_word_by_word(page):
    answer = ask(page, "search", query="everything is gre")
    assert (answer["words"], answer["pending"]) == (["everything", "is"], "gre")
    answer = ask(page, "search", query="Everything is green")
    assert answer["words"] == ["everything", "is", "green"] and not answer["unknown"]
    best = answer["photographs"][0]
    assert "green" in best["name"] or "script" in best["name"]
    assert sum(best["words"]) == pytest.approx(best["score"], rel=1e-3)
    assert ask(page, "search", query="qwertz ") == {
        "words": ["qwertz"], "unknown": ["qwertz"], "pending": "", "photographs": [],
    }  # fmt: skip
    assert ask(page, "search", query="")["photographs"] == []


def test_similar_photographs_and_sentences_of_one(page, red):
    name = "photo:below/red%200.png"
    similar = ask(page, "similar", picture=name)["photographs"]
    reds = [photo["name"] for photo in similar[:3]]
    assert sorted(reds) == ["link.png", "red 3.png", "red 6.png"]
    assert name not in [photo["picture"] for photo in similar]
    nearest = ask(page, "similar", picture=red)["photographs"][:4]
    assert {photo["name"] for photo in nearest} == {*reds, "below/red 0.png"}
    sentences = ask(page, "sentences", picture=red)["sentences"]
    assert "red" in sentences[0]["text"]


def test_all_photographs_and_their_previews(page):
    answer = ask(page, "photos")
    assert answer["total"] == 11
    hostile = [photo for photo in answer["photographs"] if "script" in photo["name"]]
    assert hostile[0]["name"] == "<script>alert(1)<.png"  # a text, which the page never parses
    shown = page.get("/api/preview", params={"picture": hostile[0]["picture"]})
    assert shown.headers["content-type"] == "image/jpeg" and shown.content[:2] == b"\xff\xd8"
    again = page.get(shown.url, headers={"if-none-match": shown.headers["etag"]})
    assert again.status_code == 304 and not again.content
    assert ask(page, "photos", first=10)["photographs"][0] == answer["photographs"][10]
    [reason] = ask(page, "unreadable")["reasons"]
    assert "broken.jpg: no image" in reason


def test_the_inside_of_the_model(page):
    card = ask(page, "card")
    assert "efficientnet_lite0" in card["sections"]["Model"]["Encoder"]
    assert card["sections"]["Sizes"]["Multimodal layer"] == 24
    words = ask(page, "nearest", word=" Red ")["words"]
    assert len(words) > 3 and words == sorted(words, key=lambda word: word["distance"])
    unknown = page.get("/api/nearest", params={"word": "<b>"})
    assert refusal(unknown, 400) == "The model does not know the word '<b>'."
    assert ask(page, "blank")["captions"][0]["text"]
    state = ask(page, "state")
    assert state["server"]["versions"] == {
        "mrnn": {"1": "AVAILABLE"},
        "mrnn_index": {"1": "AVAILABLE"},
    }
    assert state["has_index"] and state["can_search"] and state["server"]["error"] == ""


# What is refused


def test_a_body_that_is_too_large_is_refused_with_and_without_its_length(page, explorer, options):
    sentence = f"the body is larger than {MAX_BYTES} bytes."
    told = page.post("/api/pictures", content=b"x", headers={"content-length": str(1 << 30)})
    assert refusal(told, 413) == sentence
    with explored.page(explorer, dataclasses.replace(options, port=0)) as address:
        parts = itertools.repeat(bytes(1 << 16), MAX_BYTES // (1 << 16) + 1)
        assert refusal(httpx.post(f"{address}/api/pictures", content=parts), 413) == sentence
    assert refusal(page.post("/api/photographs", content=b"[" * 70_000), 413)


@pytest.mark.parametrize("side", [7300, 50_000])
def test_too_many_pixels_are_refused(page, side):
    answer = page.post("/api/pictures", content=bombs.png(side, side))
    assert "an image of too many pixels" in refusal(answer, 400)


def test_what_is_no_picture_is_refused(page, red):
    assert "no image" in refusal(page.post("/api/pictures", content=b"no picture"), 400)
    cut = page.post("/api/pictures", content=tiny.picture(0)[:50])
    assert "damaged" in refusal(cut, 400)
    assert refusal(page.get("/api/captions", params={"picture": "sent:0"}), 410)
    assert refusal(page.get("/api/captions", params={"picture": "red"}), 404)
    assert refusal(page.get("/api/search", params={"query": "x" * 3000}), 413)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("../secret.png", 403), ("%2e%2e/secret.png", 403), ("../../etc/passwd", 403),
        ("/etc/passwd", 403), ("below/../../secret.png", 403), ("link.png", 403),
        (".hidden.png", 403), ("red 3.png%00.jpg", 403), ("none.png", 404), ("below", 404),
    ],
)  # fmt: skip
def test_files_outside_the_folder_are_refused(page, path, code):
    refusal(page.get("/api/preview", params={"picture": f"photo:{path}"}), code)
    refusal(page.get("/api/captions", params={"picture": f"photo:{path}"}), code)


def test_paths_outside_the_page_are_not_found(page):
    for path in ("/../setup.py", "/%2e%2e/app.py", "/static/../app.py", "/app.py", "/docs"):
        assert refusal(page.get(path), 404) == "there is no such path."


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"}, {"host": "evil.example:8600"},
    ],
)  # fmt: skip
def test_foreign_origins_are_refused(page, headers):
    for method, path in (("GET", "/api/state"), ("POST", "/api/pictures")):
        answer = page.request(method, path, headers=headers)
        assert refusal(answer, 403)
        assert "access-control-allow-origin" not in answer.headers
    own = {"origin": "http://127.0.0.1:8600", "sec-fetch-site": "same-origin"}
    assert page.get("/api/state", headers=own).status_code == 200
    for host in ("localhost:8600", "[::1]:8600", "192.168.1.5:8600"):
        assert page.get("/api/state", headers={"host": host}).status_code == 200


def test_every_answer_has_a_policy_without_inline_code(page):
    for path in ("/", "/main.js", "/api/state", "/api/preview?picture=x", "/nowhere"):
        headers = page.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
    static = Path(server.__file__).parent / "static"
    html = (static / "index.html").read_text()
    assert " style=" not in html and "onclick" not in html and "<script>" not in html
    for file in static.iterdir():
        text = file.read_text()
        assert "innerHTML" not in text and "insertAdjacentHTML" not in text
        assert "http://" not in text.replace("http://www.w3.org", "") and "https://" not in text


def test_a_token_is_asked_for(explorer, options):
    secret = ExplorerOptions(model=options.model, token="a long secret")
    with client_of(explorer, secret) as page:
        assert "the link with the token" in refusal(page.get("/"), 401)
        assert refusal(page.get("/api/state?token=a+long+secret"), 401)
        assert refusal(page.get("/?token=wrong"), 401)
        assert refusal(page.get("/api/state", headers={"cookie": "mrnn_explorer=zz"}), 401)
        bearer = {"authorization": "Bearer a long secret"}
        assert page.get("/api/state", headers=bearer).status_code == 200
        opened = page.get("/?token=a+long+secret")
        assert "mrnn" in opened.text and opened.history[0].status_code == 303
        assert page.get("/api/state").status_code == 200


def test_an_empty_token_is_refused():
    with pytest.raises(UserError, match="`token` is empty"):
        ExplorerOptions(token="")


def test_numbers_and_folders_that_are_none_are_refused(page):
    for first in ("9" * 5000, "-1", "x"):
        answer = page.get("/api/photos", params={"first": first})
        assert "is a number of at most" in refusal(answer, 400)
    for folder, sentence in (("\ud800", "has a character"), ("", "is empty"), (" ", "is empty")):
        answer = page.post("/api/photographs", content=json.dumps({"folder": folder}))
        assert sentence in refusal(answer, 400)


def test_a_page_without_a_folder_says_what_is_missing(explorer, options):
    page = client_of(Explorer(explorer.client, explorer.captioner), options)
    assert "--photos" in refusal(page.post("/api/photographs", content="{}"), 501)


def test_a_new_version_forgets_which_words_were_known(explorer):
    asker = Explorer(explorer.client)
    asker.state()
    asker._words.put("qwertz", True)
    asker._take({"mrnn": {2: "AVAILABLE"}, "mrnn_index": {}})
    assert asker._words.get("qwertz") is None


def test_the_index_beside_a_model_is_found_with_a_slash_at_the_end(searchable_models):
    captioner = Captioner.load(f"{searchable_models / 'mrnn' / '1'}/")
    assert InProcess(captioner).status()["mrnn_index"] == {1: "AVAILABLE"}


# The photographs of a folder


@pytest.fixture(scope="module")
def captioner(explorer):
    return explorer.captioner


def test_indexing_stops_goes_on_and_notices_changes(captioner, home, tmp_path):
    folder = explored.write_photographs(tmp_path / "many", 96)
    photographs = Photographs(captioner, str(tmp_path), look_seconds=0.1)
    try:
        photographs.choose("many")
        served.wait_for(lambda: photographs.state()["done"] >= 32)
        photographs.stop()
        served.wait_for(lambda: not photographs.state()["is_running"])
        stopped = photographs.state()
        assert stopped["is_stopped"] and 32 <= stopped["done"] < stopped["total"] == 97
        found = served.wait_for(lambda: photographs.state()["photographs"])
        assert found == stopped["done"] - 1  # the broken one is among them
        photographs.go_on()
        served.wait_for(lambda: photographs.state()["photographs"] == 96)
        assert photographs.index.search("Everything is red here", k=1)[0].path.startswith(
            str(folder)
        )
        (folder / "new.png").write_bytes(tiny.picture(2))
        served.wait_for(lambda: photographs.state()["photographs"] == 97)
        (folder / "new.png").unlink()
        (folder / "red 3.png").unlink()
        served.wait_for(lambda: photographs.state()["photographs"] == 95)
        assert photographs.state()["changes"]["removed"] >= 1
    finally:
        photographs.close()


def test_another_folder_and_an_edited_file_show_their_own_pictures(explorer, options, tmp_path):
    folders = [tmp_path / name for name in ("a", "b")]
    for colour, folder in enumerate(folders):
        folder.mkdir()
        (folder / "same.png").write_bytes(tiny.picture(colour))
    photographs = Photographs(explorer.captioner, str(tmp_path), look_seconds=0.1)
    page = client_of(Explorer(explorer.client, explorer.captioner, photographs), options)

    def shown() -> tuple[str, bytes]:
        served.wait_for(lambda: ask(page, "photos")["total"] == 1)
        [photo] = ask(page, "photos")["photographs"]
        answer = page.get("/api/preview", params={"picture": photo["picture"]})
        assert answer.headers["cache-control"] == "private, max-age=0"
        return photo["version"], answer.content

    try:
        seen = []
        for folder in folders:
            photographs.begin(str(folder))
            seen.append(shown())
        (folders[1] / "same.png").write_bytes(tiny.picture(2))
        os.utime(folders[1] / "same.png", ns=(1, 1))
        seen.append(shown())
    finally:
        photographs.close()
    versions, previews = zip(*seen, strict=True)
    assert len({*versions}) == len({*previews}) == 3
    sent = page.post("/api/pictures", content=tiny.picture(0)).json()
    kept = page.get("/api/preview", params=sent)
    assert kept.headers["cache-control"] == "private, max-age=3600"


def test_one_thread_indexes_though_a_folder_is_chosen_twice(captioner, home, tmp_path, monkeypatch):
    folder = explored.write_photographs(tmp_path / "twice")
    photographs = Photographs(captioner, str(tmp_path))
    together, opened = threading.Barrier(2), FolderIndex.open

    def open_together(*arguments):
        index = opened(*arguments)
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(1)
        return index

    FolderIndex.build(server.indexes.index_of(str(folder)), folder, captioner)
    monkeypatch.setattr(FolderIndex, "open", open_together)
    before = {*threading.enumerate()}
    clicks = [threading.Thread(target=photographs.choose, args=["twice"]) for _ in range(2)]
    for click in clicks:
        click.start()
    for click in clicks:
        click.join()
    indexing = {*threading.enumerate()} - before
    photographs.close()
    assert len([thread for thread in indexing if thread.name == "photographs"]) == 1


def test_indexing_goes_on_after_a_failure(captioner, home, tmp_path, monkeypatch):
    folder = explored.write_photographs(tmp_path / "failing")
    photographs = Photographs(captioner, str(tmp_path), look_seconds=0.1)
    failures = iter([tf.errors.ResourceExhaustedError(None, None, "no memory"), OSError("no disk")])
    search, update = FolderIndex.search_prefix, FolderIndex.update

    def fail_once(method):
        def run(self, *arguments):
            if threading.current_thread().name == "photographs" and (error := next(failures, None)):
                raise error
            return method(self, *arguments)

        return run

    try:
        monkeypatch.setattr(FolderIndex, "update", fail_once(update))
        photographs.begin(str(folder))
        served.wait_for(lambda: "no disk" in photographs.state()["error"])
        served.wait_for(lambda: photographs.state()["photographs"] == 9)
        failures = iter([tf.errors.ResourceExhaustedError(None, None, "no memory")])
        monkeypatch.setattr(FolderIndex, "search_prefix", fail_once(search))
        (folder / "new.png").write_bytes(tiny.picture(2))
        served.wait_for(lambda: photographs.state()["photographs"] == 10)
        served.wait_for(lambda: photographs.state()["error"] == "")
        assert next(failures, None) is None
    finally:
        photographs.close()


def test_an_unfinished_index_says_how_long_it_takes(captioner, home, tmp_path):
    photographs = Photographs(captioner, str(tmp_path))
    photographs._is_running, photographs._began = True, 0.0
    photographs._watch(0, 100)
    assert photographs.state()["seconds_left"] is None
    photographs._watch(50, 100)
    assert photographs.state()["seconds_left"] >= 0


@pytest.mark.parametrize("wanted", ["..", "/etc", "../other", "~root", "nul\0", "none"])
def test_only_folders_in_the_root_can_be_chosen(page, captioner, home, tmp_path, wanted):
    (tmp_path / "root").mkdir()
    (tmp_path / "other").mkdir()
    photographs = Photographs(captioner, str(tmp_path / "root"))
    with pytest.raises(UserError, match=r"must lie in|There is no folder"):
        photographs.choose(wanted)
    (tmp_path / "root" / "link").symlink_to(tmp_path / "other")
    with pytest.raises(UserError, match="must lie in"):
        photographs.choose("link")
    answer = page.post("/api/photographs", content=json.dumps({"folder": "/etc"}))
    assert "The folder must lie in" in refusal(answer, 400)


def test_the_page_tells_the_folder_what_to_do(page, explorer):
    assert page.post("/api/photographs", content='{"action": "stop"}').json()["is_stopped"]
    assert not page.post("/api/photographs", content='{"action": "go on"}').json()["is_stopped"]
    for body in ("[]", '{"action": "delete"}', "{", "[" * 5000, '{"folder": 1}'):
        refusal(page.post("/api/photographs", content=body), 400)


# A server


@pytest.mark.timeout(300)
def test_a_server_answers_goes_away_and_comes_back(searchable_models, folder, explorer, tmp_path):
    with served.serving(tmp_path, searchable_models) as running:
        options = ExplorerOptions(server=running.address, photos=str(folder))
        remote = server.create_explorer(options)
        page = client_of(remote, options)
        state = ask(page, "state")
        assert state["has_index"] and not state["can_index"] and not state["server"]["is_here"]
        red = page.post("/api/pictures", content=tiny.picture(0)).json()["picture"]
        here = explorer.captions(explorer.pictures.add(tiny.picture(0)), "")
        there = ask(page, "captions", picture=red)
        for name in ("captions", "reranked"):
            assert [c["text"] for c in there[name]] == [c["text"] for c in here[name]]
        answer = ask(page, "search", query="all of it is re")
        assert answer["pending"] == "re" and answer["photographs"][0]["picture"] == ""
        assert ask(page, "search", query="qwertz ")["unknown"] == ["qwertz"]
        assert "red" in ask(page, "sentences", picture=red)["sentences"][0]["text"]
        assert ask(page, "similar", picture=red)["photographs"]
        assert ask(page, "photos")["total"] == 12  # files, one of them broken
        assert not ask(page, "card")["has_words"]
        assert "--model" in refusal(page.get("/api/nearest?word=red"), 400)
        assert refusal(page.post("/api/photographs", content="{}"), 501)
        port = running.address.rsplit(":")[-1]
    gone = ask(page, "state")
    assert "no server answers at" in gone["server"]["error"] and not gone["can_search"]
    assert "no server answers" in refusal(page.get("/api/captions", params={"picture": red}), 503)
    with served.serving(tmp_path, searchable_models, f"--port={port}"):
        served.wait_for(lambda: not ask(page, "state")["server"]["error"])
        assert ask(page, "captions", picture=red) == there
    remote.close()


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(UserError, match="`photos`: there is no folder"):
        server.create_explorer(ExplorerOptions(photos=str(tmp_path / "none")))


def test_a_model_beside_a_server_that_is_away_is_told(options):
    away = ExplorerOptions(server="127.0.0.1:1", model=options.model)
    with pytest.raises(UserError, match="`server`: no server answers at"):
        server.create_explorer(away)

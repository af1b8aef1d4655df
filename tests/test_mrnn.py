"""The command `mrnn` as real processes: what it prints, what it refuses, what survives kills."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import programs
import pytest
import test_folder_index
import tiny
from PIL import Image

from mrnn_tf import pretrained
from mrnn_tf.captioner import Captioner
from mrnn_tf.pretrained import packaging
from mrnn_tf.run import Run
from serving.client import Client

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def model(photo_job, tmp_path_factory):
    """A packaged model."""
    folder = tmp_path_factory.mktemp("model") / "colours"
    packaging.package(Run.load(photo_job), str(folder), pretrained.Card("colours", "for tests"))
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pictures of three colours, one of them in a folder below, and a broken one."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "below").mkdir()
    for number, colour in enumerate(tiny.COLOURS):
        (folder / "below" / f"{colour}.png").write_bytes(tiny.picture(number))
    (folder / "broken.jpg").write_text("no picture")
    return folder


@pytest.fixture
def mrnn(home, tmp_path):
    def run(*arguments, **environment):
        settings = {"XDG_DATA_HOME": str(home), **environment}
        return programs.run(tmp_path, "serving.mrnn", *arguments, environment=settings)

    return run


@pytest.fixture(scope="module")
def indexed(model, folder, home, tmp_path_factory):
    """What `mrnn index` says of the folder."""
    logs, settings = tmp_path_factory.mktemp("logs"), {"XDG_DATA_HOME": str(home)}
    done = programs.run(
        logs, "serving.mrnn", "index", folder, "--model", model, "--json", environment=settings
    )
    assert done.code == 0, done.err
    return json.loads(done.out)


def lines(done) -> list[dict]:
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def test_help_and_models_need_no_tensorflow():
    code = (
        "import sys; from serving import mrnn\n"
        "for words in (['--help'], ['search', '--help'], ['models']):\n"
        "    sys.argv = ['mrnn', *words]\n"
        "    try: mrnn.main()\n"
        "    except SystemExit as end: assert not end.code, end.code\n"
        "print('loaded:', {'tensorflow', 'keras', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "mrnn caption photo.jpg" in done.stdout and "--exact" in done.stdout, done.stderr
    assert "loaded: set()" in done.stdout


def test_captions(mrnn, model, folder):
    photo = folder / "below" / "red.png"
    expected = Captioner.load(model).caption(photo, n=2)
    done = mrnn("caption", photo, "--model", model, "--n=2", "--evidence")
    assert done.code == 0, done.err
    heading, first, evidence, *_ = done.out.splitlines()
    assert heading == str(photo)
    assert first.split(maxsplit=1) == [f"{expected[0].log_prob:.2f}", expected[0].text]
    assert re.search(r"red [+-]\d", evidence) and "</s>" in evidence
    [row] = lines(mrnn("caption", photo, "--model", model, "--n=6", "--prefix=a red", "--json"))
    assert len(row["captions"]) > 2 and all(text.startswith("a red") for text in row["captions"])


def test_captions_of_a_folder_go_into_a_file(mrnn, model, folder, tmp_path):
    for name in ("captions.jsonl", "captions.parquet"):
        done = mrnn("caption", folder, "--model", model, "--n=1", "--output", tmp_path / name)
        assert done.code == 0, done.err
        assert done.out == f"captioned 3 of 4 photographs: {tmp_path / name}\n"
    rows = [json.loads(line) for line in (tmp_path / "captions.jsonl").read_text().splitlines()]
    assert [Path(row["path"]).name for row in rows] == [
        "blue.png", "green.png", "red.png", "broken.jpg",
    ]  # fmt: skip
    assert all(
        c in row["captions"][0] for c, row in zip(("blue", "green", "red"), rows[:3], strict=True)
    )
    assert rows[3]["captions"] == [] and "no image" in rows[3]["error"]
    from pyarrow import parquet

    table = parquet.read_table(tmp_path / "captions.parquet").to_pylist()
    for row, other in zip(rows, table, strict=True):
        np.testing.assert_allclose(row.pop("log_probs"), other.pop("log_probs"), rtol=1e-5)
        assert row == other


def test_an_index_is_made_and_found_again(indexed, mrnn, folder, home):
    assert indexed["folder"] == str(folder) and indexed["photographs"] == 3
    assert (indexed["added"], indexed["unreadable"]) == (4, 1)
    assert Path(indexed["index"]).parent == home / "mrnn" / "indexes"
    again = mrnn("index", folder)
    assert again.code == 0, again.err
    assert again.out.startswith("0 new, 0 changed, 0 moved, 0 removed: 3 photographs in ")
    assert "left out: " in again.err and "broken.jpg: no image" in again.err


def test_searches(indexed, mrnn, folder, home):
    done = mrnn("search", "Everything is red here", "qwertz is green here", "--k=1")
    assert done.code == 0, done.err
    assert [line.split(maxsplit=1)[1] for line in done.out.splitlines()] == [
        str(folder / "below" / "red.png"), str(folder / "below" / "green.png"),
    ]  # fmt: skip
    assert "the model does not know: qwertz\n" in done.err
    nothing = mrnn("search", "")
    assert (nothing.code, nothing.out) == (0, "")
    assert nothing.err == 'nothing is found by "": it has no word that the model knows\n'
    browser = f"{sys.executable} -c pass %s"
    found = mrnn("search", "red", "--folder", folder, "--json", "--open", BROWSER=browser)
    rows = lines(found)
    assert len(rows) == 3 and rows[0]["path"].endswith("red.png") and rows[0]["sentence"] == "red"
    sheet = (home / "mrnn" / "sheet.html").read_text()
    assert sheet.count("<img ") == 3 and (folder / "below" / "red.png").as_uri() in sheet
    similar = lines(mrnn("similar", folder / "below" / "blue.png", "--k=2", "--json"))
    assert similar[0]["path"].endswith("blue.png") and similar[0]["score"] > similar[1]["score"]


def test_bad_input_is_answered_by_one_sentence(indexed, mrnn, model, folder, tmp_path, models):
    text = tmp_path / "text.jpg"
    text.write_text("no picture")
    (tmp_path / "empty").mkdir()
    named = ["--model", model]
    cases = [
        (["nonsense"], "mrnn has no command nonsense: its commands are caption, index"),
        (["caption"], "Wanted: mrnn caption PHOTO_OR_FOLDER ...*; got 0 arguments"),
        (["search", "red", "--shortlist=3"], "mrnn search has no flag --shortlist"),
        (["caption", tmp_path / "none.jpg", *named], "none.jpg: No such file or directory"),
        (["caption", tmp_path / "empty", *named], "empty holds no photographs"),
        (["caption", text, *named], "text.jpg: no image; JPEG"),
        (["caption", text, "--model", "nonsense"], "There is no model nonsense: neither"),
        (["caption", text, "--model", tmp_path / "empty"], "holds neither a SavedModel"),
        (["caption", text, *named, "--output=captions.txt"], "--output captions.txt must end with"),
        (["index", tmp_path / "none", *named], "none is no folder"),
        (["index", tmp_path / "empty", *named], "empty holds no photographs"),
        (["index", folder, "--model", models / "plain"], "was made with another model"),
        (["search", "red", "--folder", tmp_path], "is not indexed yet: run `mrnn index"),
        (["similar", text], "text.jpg: no image; JPEG"),
    ]
    for arguments, expected in cases:
        done = mrnn(*arguments)
        assert done.code == 1, arguments
        pattern = ".*".join(map(re.escape, expected.split("...*")))
        assert re.search(pattern, done.error), done.error
    done = mrnn("search", "red", XDG_DATA_HOME=str(tmp_path))
    assert done.error == "error: There is no index yet: run `mrnn index FOLDER` first."


def test_a_folder_that_may_not_be_written_to_is_indexed(mrnn, model, folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    before = {path: path.stat().st_mtime_ns for path in [copy, *copy.rglob("*")]}
    for path in before:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        done = mrnn("index", copy, "--model", model)
        assert done.code == 0, done.err
        assert before == {path: path.stat().st_mtime_ns for path in [copy, *copy.rglob("*")]}
    finally:
        for path in before:
            path.chmod(0o755)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_packaged_model_is_exported_once_and_served(model, folder, tmp_path):
    photo, settings = folder / "below" / "red.png", {"XDG_DATA_HOME": str(tmp_path / "home")}
    for is_first in (True, False):
        arguments = ["serve", "--model", model, "--port=0", "--rest_api_port=0"]
        running = programs.start(tmp_path, "serving.mrnn", *arguments, environment=settings)
        deadline = time.monotonic() + 600
        while not (address := re.search(r"next: .* --server (\S+)", running.out)):
            assert time.monotonic() < deadline and running.process.is_alive(), running.err
            time.sleep(0.1)
        assert ("exporting " in running.out) == is_first
        [captions] = Client(address[1]).caption([photo.read_bytes()])
        assert "red" in captions["captions"][0]
        running.process.terminate()
        assert running.wait().code == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_five_kills_change_nothing(model, tmp_path):
    folder, rng = tmp_path / "photos", np.random.default_rng(0)
    folder.mkdir()
    for number in range(1200):
        pixels = rng.integers(0, 256, (40, 60, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "broken.jpg").write_text("no picture")

    def start(index):
        arguments = ["index", folder, "--model", model, "--index", index]
        return programs.start(tmp_path / "logs", "serving.mrnn", *arguments)

    undisturbed = start(tmp_path / "undisturbed").wait(900)
    assert undisturbed.code == 0, undisturbed.err
    chance, vectors = random.Random(0), tmp_path / "killed" / "vectors-0.f32"
    for _ in range(5):
        size, running = (
            vectors.stat().st_size if vectors.exists() else 0,
            start(tmp_path / "killed"),
        )
        deadline = time.monotonic() + 300
        while not (vectors.exists() and vectors.stat().st_size > size):
            assert time.monotonic() < deadline and running.process.is_alive(), running.err
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.5))
        assert running.process.is_alive()
        os.kill(running.process.pid, 9)
        running.wait()
    last = start(tmp_path / "killed").wait(900)
    assert last.code == 0, last.err
    assert test_folder_index.contents(tmp_path / "killed") == test_folder_index.contents(
        tmp_path / "undisturbed"
    )


def test_the_folder_of_the_explorer_is_named_once(mrnn, folder, tmp_path):
    done = mrnn("explore", folder, "--photos", folder)
    assert done.code == 1 and "Give the folder once" in done.error
    done = mrnn("explore", tmp_path / "none", "--port=0", "--noopen")
    assert done.code == 1 and "--photos: there is no folder" in done.error

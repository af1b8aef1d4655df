"""The batch job `export.captions`: folders in, files of captions out, on any runner."""

import io
import json

import programs
import pytest
import tensorflow as tf
import tiny
from pyarrow import parquet

from export import captions
from export.options import CaptionsOptions
from mrnn_tf.errors import UserError


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for number in range(7):
        (folder / f"{number}.png").write_bytes(tiny.picture(number % 3))
    (folder / "broken.jpg").write_text("no picture")
    return folder


def rows(folder) -> list[dict]:
    paths = sorted(folder.glob("captions-*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def expected(images, models, tmp_path_factory):
    """The rows of the default runner."""
    output = tmp_path_factory.mktemp("captions") / "out"
    done = programs.run(
        output, "export.captions", "--images", images, "--model", models / "mrnn",
        "--output", output, "--images_per_shard=3",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert f"captioned 8 photographs: {output}\n" in done.out
    names = sorted(path.name for path in output.glob("captions*"))
    shards = [f"captions-0000{shard}-of-00003.jsonl" for shard in range(3)]
    assert names == [*shards, "captions.json"] and not list(output.glob(".work-*"))
    return rows(output)


def test_every_photograph_has_a_row(expected, images):
    paths = [str(images / f"{number}.png") for number in range(7)]
    assert [row["path"] for row in expected] == [*paths, str(images / "broken.jpg")]
    for number, row in enumerate(expected[:7]):
        assert tiny.COLOURS[number % 3] in row["captions"][0] and row["error"] is None
    assert expected[7]["captions"] == [] and "no image" in expected[7]["error"]


@pytest.mark.parametrize(
    "flags", [["--direct_running_mode=multi_processing", "--direct_num_workers=2"], []]
)
def test_runners_agree(flags, expected, images, models, tmp_path):
    output = tmp_path / "out"
    arguments = ["--images", images, "--model", models / "mrnn", "--output", output]
    done = programs.run(tmp_path, "export.captions", *arguments, "--images_per_shard=5", *flags)
    assert done.code == 0, done.err
    for mine, theirs in zip(rows(output), expected, strict=True):
        assert (mine["path"], mine["captions"]) == (theirs["path"], theirs["captions"])


def test_remote_folders(expected, images, models):
    for path in images.iterdir():
        tf.io.gfile.makedirs("ram://captions/images")
        tf.io.gfile.copy(str(path), f"ram://captions/images/{path.name}", overwrite=True)
    options = CaptionsOptions(
        images="ram://captions/images",
        model=str(models / "mrnn"),
        output="ram://captions/out",
        format="parquet",
    )
    captions.caption_images(options)
    with tf.io.gfile.GFile("ram://captions/out/captions-00000-of-00001.parquet", "rb") as file:
        table = parquet.read_table(io.BytesIO(file.read())).to_pylist()
    assert [row["captions"] for row in table] == [row["captions"] for row in expected]
    assert table[-1]["error"].startswith("ram://captions/images/broken.jpg: no image")


def test_a_runner_that_drops_a_shard_is_noticed(images, models, tmp_path, monkeypatch):
    def run(shards, do_fn, *_):
        do_fn.setup()
        for shard in shards[1:]:
            list(do_fn.process(shard) or ())

    monkeypatch.setattr(captions.batch, "run", run)
    options = CaptionsOptions(
        images=str(images), model=str(models / "mrnn"), output=str(tmp_path), images_per_shard=4
    )
    with pytest.raises(UserError, match=r"captions-00000-of-00002.jsonl was not made"):
        captions.caption_images(options)
    monkeypatch.undo()
    captions.caption_images(options)  # goes on
    assert len(rows(tmp_path)) == 8
    with pytest.raises(UserError, match="holds captions already"):
        captions.caption_images(options)
    with pytest.raises(UserError, match="`images` nowhere does not exist"):
        captions.caption_images(CaptionsOptions(images="nowhere", output=str(tmp_path)))

"""`python -m trainer.prepare` as a user runs it: real images, real Beam, real processes."""

import dataclasses
import io
import json
import os
import time
import warnings

import numpy as np
import phone
import programs
import pytest
from PIL import Image

from mrnn_tf import files, schema, text
from mrnn_tf.data import pipeline, records
from mrnn_tf.errors import UserError


@pytest.fixture
def prepare(tmp_path):
    return lambda *arguments: programs.run(tmp_path, "trainer.prepare", *arguments)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Ten small photographs in captions.jsonl; one is cut off, one is missing."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    with (folder / "captions.jsonl").open("w") as file:
        for i in range(10):
            split = "train" if i < 6 else "val"
            captions = [f"A dog number {i}.", "A dog runs"] if i != 9 else []
            file.write(json.dumps({"image": f"{i}.jpg", "captions": captions, "split": split}))
            file.write("\n")
            Image.fromarray(rng.integers(0, 255, (40, 60, 3), np.uint8)).save(folder / f"{i}.jpg")
    cut = (folder / "3.jpg").read_bytes()
    (folder / "3.jpg").write_bytes(cut[: len(cut) // 2])
    (folder / "7.jpg").unlink()
    return folder


@pytest.fixture(scope="module")
def features(photos):
    np.save(photos / "f.npy", np.arange(40, dtype=np.float16).reshape(10, 4))
    (photos / "n.txt").write_text("".join(f"{i}.jpg\n" for i in range(10)))
    return ["--features", photos / "f.npy", "--names", photos / "n.txt"]


def test_images_become_features_and_bad_ones_are_reported(prepare, photos, tmp_path):
    output = tmp_path / "data"
    arguments = ["--dataset", "jsonl", "--source", photos, "--output", output]
    arguments += ["--store", "both", "--min_count", 2, "--images_per_shard", 4]
    done = prepare(*arguments)
    assert done.code == 0, done.err
    assert "1 x image cannot be decoded: 3.jpg" in done.err
    assert "1 x image file is missing: 7.jpg" in done.err
    assert "next: python -m trainer.task" in done.out
    info = records.DatasetInfo.load(str(output))
    assert info.splits == {
        "train": records.SplitCounts(5, 10, 2),
        "val": records.SplitCounts(3, 4, 1),
    }
    assert info.identity.startswith("efficientnet_lite0:") and info.feature_size == 1280
    assert sorted(os.listdir(output)) == [
        "dataset.json",
        "problems.jsonl",
        "train-00000-of-00002.tfrecord",
        "train-00001-of-00002.tfrecord",
        "val-00000-of-00001.tfrecord",
        "vocabulary.txt",
    ]
    problems = (output / "problems.jsonl").read_text()
    assert f"All 2 problems are in {output}/problems.jsonl" in done.err
    [undecodable, missing] = map(json.loads, problems.splitlines())
    assert undecodable.pop("detail").startswith(f"{photos}/3.jpg: jpeg::Uncompress failed")
    assert undecodable == {"problem": "image cannot be decoded", "name": "3.jpg"}
    assert missing["name"] == "7.jpg" and "No such file" in missing["detail"]
    vocabulary = text.Vocabulary.load(str(output / schema.VOCABULARY_FILE))
    assert vocabulary.words[4:] == ("a", "dog", "number", "runs")
    [batch] = pipeline.image_batches(pipeline.Source(str(output), "val", vocabulary, "images"), 8)
    assert batch["ids"].numpy().tolist() == [b"6.jpg", b"8.jpg", b"9.jpg"]
    assert batch["images"].numpy()[0] == (photos / "6.jpg").read_bytes()
    assert batch["captions"].to_list()[2] == []
    (output / ".work").mkdir()
    other = prepare(*arguments, "--seed", 1)
    assert other.code == 1 and "holds another dataset" in other.error
    assert not (output / ".work").exists()
    again = prepare(*arguments)
    assert again.code == 0 and "holds this dataset already" in again.err
    assert (output / "problems.jsonl").read_text() == problems
    strict = prepare(*arguments[:5], tmp_path / "strict", "--strict")
    assert strict.code == 1 and "--strict: 1 x image cannot be decoded" in strict.err
    assert not (tmp_path / "strict" / "dataset.json").exists()


def test_files_alone_are_stored_where_they_can_be_decoded(prepare, photos, tmp_path):
    arguments = ["--dataset", "jsonl", "--source", photos, "--output", tmp_path / "data"]
    done = prepare(*arguments, "--store", "images", "--min_count", 2)
    assert done.code == 0, done.err
    assert "1 x image cannot be decoded: 3.jpg" in done.err
    assert "1 x image file is missing: 7.jpg" in done.err
    info = records.DatasetInfo.load(str(tmp_path / "data"))
    assert [info.splits[name].images for name in ("train", "val")] == [5, 3]


def test_photographs_are_prepared_upright(prepare, tmp_path):
    lines = []
    for number, content in enumerate(phone.PHOTOGRAPHS + phone.STORED):
        (tmp_path / f"{number}.jpg").write_bytes(content)
        lines.append({"image": f"{number}.jpg", "captions": ["A cup of coffee"], "split": "val"})
    (tmp_path / "captions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = prepare("--dataset", "jsonl", "--source", tmp_path, "--output", tmp_path / "data")
    assert done.code == 0, done.err
    source = pipeline.Source(str(tmp_path / "data"), "val", None, "features")
    [batch] = pipeline.image_batches(source, 20)
    upright, stored = np.split(batch["features"].numpy(), 2)
    difference = np.linalg.norm(upright - upright[0], axis=1).max()
    assert difference < 0.2 * np.linalg.norm(stored[1:] - stored[0], axis=1).min()

    # Small pictures are stored by default, upright too, and nothing takes them for images.
    assert source.info.stores == ("features", "pictures") and "--nopictures" in done.out
    pictures = dict(pipeline.pictures(str(tmp_path / "data"), "val"))
    sizes = [Image.open(io.BytesIO(pictures[f"{i}.jpg"])).size for i in range(len(upright))]
    assert len(pictures) == len(lines) and len(set(sizes)) == 1 and min(sizes[0]) <= 256
    with pytest.raises(UserError, match="but no images: prepare it with --store images or both"):
        dataclasses.replace(source, stores="images")


def test_python_prepares_by_one_options_object(photos, features, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Beam warns of clouds that it was not installed for
        from trainer import prepare as preparation

    options = preparation.PrepareOptions(
        dataset="jsonl",
        source=photos,
        output=tmp_path / "data",
        features=(features[1],),
        names=features[3],
        images_per_shard=3,
    )
    info = preparation.prepare(options)
    assert info == records.DatasetInfo.load(str(tmp_path / "data"))
    assert info.splits["train"].images == 6 and not info.problems
    # Features of a table need no image file; a picture is stored of those that can be read.
    pictures = {
        name for split in info.splits for name, _ in pipeline.pictures(options.output, split)
    }
    assert pictures == {f"{i}.jpg" for i in range(10)} - {"3.jpg", "7.jpg"}
    assert preparation.prepare(options) == info  # it is there already
    with pytest.raises(ValueError, match="`crops` goes with `encoder`, not with `features`"):
        preparation.prepare(dataclasses.replace(options, crops=10))


def test_processes_of_beam_write_the_same_records(prepare, photos, features, tmp_path):
    arguments = ["--dataset", "jsonl", "--source", photos, *features, "--images_per_shard", 3]
    assert prepare(*arguments, "--output", tmp_path / "one").code == 0
    flags = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    many = prepare(*arguments, "--output", tmp_path / "two", *flags)
    assert many.code == 0, many.err
    names = sorted(os.listdir(tmp_path / "one"))
    assert names == sorted(os.listdir(tmp_path / "two")) and len(names) == 6
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    info = records.DatasetInfo.load(str(tmp_path / "one"))
    assert info.identity == "features:f:4" and info.splits["train"].images == 6


def test_a_killed_run_is_not_whole_and_the_same_command_finishes_it(prepare, photos, tmp_path):
    output = tmp_path / "data"
    arguments = ["--dataset", "jsonl", "--source", photos, "--output", output]
    arguments += ["--images_per_shard", 1, "--min_count", 1]
    killed = programs.start(tmp_path, "trainer.prepare", *arguments)
    deadline = time.monotonic() + 120
    while len(list(output.glob("*.tfrecord"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.process.kill()
    killed.wait()
    finished = {path: path.stat().st_mtime_ns for path in output.glob("*.tfrecord")}
    assert 0 < len(finished) < 10
    with pytest.raises(FileNotFoundError, match="not a whole dataset"):
        records.DatasetInfo.load(str(output))
    other = prepare(*arguments, "--seed", 1)
    assert other.code == 1 and "part of another dataset" in other.err
    done = prepare(*arguments)
    assert done.code == 0, done.err
    info = records.DatasetInfo.load(str(output))
    assert (info.splits["train"].images, info.splits["val"].images) == (5, 3)
    assert not list(output.glob("*.partial")) and not (output / ".work").exists()
    kept = [path for path, when in finished.items() if path.stat().st_mtime_ns == when]
    assert len(kept) >= len(finished) - 1  # at most the shard whose report was not yet written


def test_two_processes_do_not_write_one_dataset(prepare, photos, features, tmp_path):
    output = tmp_path / "data"
    arguments = ["--dataset", "jsonl", "--source", photos, *features, "--output", output]
    both = [programs.start(tmp_path, "trainer.prepare", *arguments) for _ in range(2)]
    codes = sorted(program.wait().code for program in both)
    for program in both:
        if program.code:
            assert f"Another process is writing to {output}" in program.error
    assert codes in ([0, 0], [0, 1])  # the second may come when the first has ended
    with files.alone_in(str(output)):
        assert "Another process is writing to" in prepare(*arguments).error
    records.DatasetInfo.load(str(output)).checksums.check()
    assert not (output / ".work").exists()


def test_the_demo_is_not_drawn_into_another_dataset(prepare, photos, features, tmp_path):
    output = tmp_path / "data"
    done = prepare("--dataset", "jsonl", "--source", photos, *features, "--output", output)
    assert done.code == 0, done.err
    refused = prepare("--dataset", "demo", "--output", output)
    assert refused.code == 1 and "holds another dataset" in refused.error
    assert "Drawing" not in refused.err and not (output / ".work").exists()
    (output / "dataset.json").unlink()
    (output / ".work").mkdir()
    (output / ".work" / "request").write_text("of photos")
    refused = prepare("--dataset", "demo", "--output", output)
    assert refused.code == 1 and "a part of another dataset" in refused.error
    assert os.listdir(output / ".work") == ["request"]


BAD = {
    "source": ("--source nowhere", "nowhere"),
    "no source": ("", "--source is required"),
    "encoder": ("--source PHOTOS --encoder vgg99", "Unknown encoder 'vgg99'"),
    "dataset": ("--dataset imagenet", "dataset"),
    "flag": ("--source PHOTOS --sauce x", "Unknown flag --sauce"),
    "rows": ("--source PHOTOS --features PHOTOS/f.npy --names PHOTOS/short.txt", "10 rows, but"),
    "joined rows": (
        "--source PHOTOS --features PHOTOS/f.npy,PHOTOS/few.npy --names PHOTOS/n.txt",
        "few.npy has 9 rows, but --names",
    ),
    "encoder names": (
        "--source PHOTOS --features PHOTOS/f.npy --names PHOTOS/n.txt --encoder_name a,b",
        "--encoder_name has 2 names, but --features 1 files",
    ),
    "nan": ("--source PHOTOS --features PHOTOS/nan.npy --names PHOTOS/n.txt", "NaN"),
    "names": ("--source PHOTOS --features PHOTOS/f.npy --names PHOTOS/x.txt", "names no image"),
    "validation": ("--source PHOTOS --validation 3", "--validation is for a dataset without"),
    "crops": ("--source PHOTOS --crops 5", "--crops must be one of (1, 10); got 5"),
    "lost names": ("--source PHOTOS --names PHOTOS/n.txt", "--names goes with --features"),
    "stray": ("--source PHOTOS my photos", "Unexpected argument my"),
    "output": ("--source PHOTOS --output PHOTOS", "holds other files"),
    "gpu": ("--source PHOTOS --require_gpu", "sees no GPU"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_exit_code_1(prepare, photos, features, tmp_path, case):
    (photos / "short.txt").write_text("0.jpg\n")
    (photos / "x.txt").write_text("".join(f"x{i}.jpg\n" for i in range(10)))
    np.save(photos / "few.npy", np.ones((9, 4), np.float32))
    np.save(photos / "nan.npy", np.full((10, 4), np.nan, np.float32))
    arguments, sentence = BAD[case]
    arguments = arguments.replace("PHOTOS", str(photos)).split()
    done = prepare("--dataset", "jsonl", "--output", tmp_path / "data", *arguments)
    assert done.code == 1
    assert sentence in done.error
    assert not (tmp_path / "data" / "dataset.json").exists()

"""Reranking as a user runs it, on n-best lists of the tiny dataset."""

import json

import programs
import pytest
import tiny

from mrnn_tf import files
from mrnn_tf.metrics import coco, nbest


def right(i):
    return f"a {tiny.COLOURS[i % 3]} {tiny.THINGS[i % 4]}"


def wrong(i):
    return f"a {tiny.COLOURS[(i + 1) % 3]} {tiny.THINGS[(i + 2) % 4]}"


def n_best(ids=range(12)):
    """The truth is the third of four hypotheses."""
    return [
        {
            "image_id": f"val-{i}.jpg",
            "captions": [wrong(i), wrong(i + 1), right(i), f"{right(i)} boat boat"],
            "log_probs": [-1.0, -2.0, -3.0, -4.0],
        }
        for i in ids
    ]


@pytest.fixture
def rerank(tmp_path):
    def run(lists, *arguments):
        (tmp_path / "nbest.json").write_text(json.dumps(lists))
        given = ["--hypotheses", tmp_path / "nbest.json", "--output", tmp_path / "out" / "r.json"]
        return programs.run(tmp_path, "trainer.rerank", *given, *arguments)

    return run


def results(tmp_path):
    return coco.read_results(str(tmp_path / "out" / "r.json"))


def near(data, job):
    return ["--data", data, "--job_dir", job, "--k=2"]


@pytest.mark.parametrize("method", ["cider", "bleu", "combined"])
def test_the_captions_of_near_images_say_what_is_right(
    method, rerank, tiny_data, tiny_job, tmp_path
):
    weights = ["--weight=0.1", "--log_prob=0.01"]
    done = rerank(n_best(), "--method", method, *near(tiny_data, tiny_job), *weights)
    assert done.code == 0, done.err
    assert f"{method}: another caption than the first for 12 of 12 images" in done.out
    assert "next: python -m mrnn_tf.metrics --references captions.json" in done.out
    assert results(tmp_path) == {f"val-{i}.jpg": right(i) for i in range(12)}


@pytest.mark.parametrize("features", ["original", "refined"])
def test_the_paper_s_features_find_neighbours_too(features, rerank, tiny_data, tiny_job, tmp_path):
    arguments = ["--method=bleu", f"--features={features}"]
    done = rerank(n_best(), *near(tiny_data, tiny_job), *arguments)
    assert done.code == 0, done.err
    assert results(tmp_path) == {f"val-{i}.jpg": right(i) for i in range(12)}


def test_mbr_needs_nothing_but_lists_of_any_system(rerank, tmp_path):
    lists = [
        {"image_id": 7, "captions": ["a boat", "the dog runs", "a dog runs", "a dog runs fast"]},
        {"image_id": "x", "captions": ["only one"]},
        {"image_id": 9, "captions": []},
        {"image_id": 10, "captions": ["", "", ""]},
    ]
    done = rerank(lists, "--method=mbr")
    assert done.code == 0, done.err
    assert results(tmp_path) == {7: "a dog runs", "x": "only one", 9: "", 10: ""}


def test_an_oracle_chooses_by_references_whose_ids_are_numbers_or_texts(rerank, tmp_path, write):
    references = {i: [right(i), f"there is {right(i)} here"] for i in range(12)}
    coco.write_references(str(tmp_path / "captions.json"), references)
    lists = [{**each, "image_id": str(i)} for i, each in enumerate(n_best())]
    for method in ("oracle_cider", "oracle_bleu"):
        done = rerank(lists, "--method", method, "--references", tmp_path / "captions.json")
        assert done.code == 0, done.err
        assert results(tmp_path) == {str(i): right(i) for i in range(12)}


def test_an_oracle_may_read_the_records(rerank, tiny_data, tmp_path):
    done = rerank(n_best(range(3)), "--method=oracle_cider", "--data", tiny_data)
    assert done.code == 0, done.err
    assert "9 images of the split val" in done.err and "left out" in done.err
    assert results(tmp_path) == {f"val-{i}.jpg": right(i) for i in range(3)}


def test_more_neighbours_than_images_are_all_images(rerank, tiny_data, tiny_job, tmp_path):
    done = rerank(n_best(), "--data", tiny_data, "--job_dir", tiny_job, "--k=1000", "--m=1000")
    assert done.code == 0, done.err
    assert "There are 24 training images: all are neighbours, not 1000." in done.err
    assert len(results(tmp_path)) == 12


def test_tuning_writes_its_grid_and_uses_the_best(rerank, tiny_data, tiny_job, tmp_path):
    done = rerank(n_best(), "--method=combined", "--tune", *near(tiny_data, tiny_job))
    assert done.code == 0, done.err
    tuned = json.loads((tmp_path / "out" / "tuning.json").read_text())
    neighbours, weights = tuned["grids"]
    assert len(neighbours["cells"]) == 35 and len(weights["cells"]) == 25
    best = max(cell["cider"] for cell in weights["cells"])
    [used] = [c for c in weights["cells"] if {**c, **weights["best"]} == c]
    assert used["cider"] == best
    assert weights["validated"]["cider"] <= best + 1e-9
    picture = (tmp_path / "out" / "tuning.svg").read_text()
    assert picture.startswith("<svg") and picture.count("<rect") == 61


def test_lists_may_be_on_any_file_system():
    files.write_json("ram://rerank/nbest.json", n_best(range(1)))
    [(image, found)] = nbest.read_n_best("ram://rerank/nbest.json").items()
    assert (image, found.log_probs) == ("val-0.jpg", (-1.0, -2.0, -3.0, -4.0))


@pytest.mark.parametrize(
    ("lists", "arguments", "message"),
    [
        ([], ["--method=mbr"], "nbest.json holds no images"),
        ({"a": 1}, ["--method=mbr"], "nbest.json holds no list"),
        ([{"image_id": 1}], ["--method=mbr"], "[0] has no `image_id` and `captions`"),
        ([{"image_id": 1, "captions": [1]}], ["--method=mbr"], "must all be texts"),
        (
            [{"image_id": 1, "captions": ["a"], "log_probs": []}],
            ["--method=mbr"],
            "must be a finite number for every caption",
        ),
        (
            [{"image_id": 1, "captions": ["a"]}, {"image_id": "1", "captions": ["a"]}],
            ["--method=mbr"],
            "more than one list of 1 images, the first are 1: keep one list",
        ),
        (n_best(), ["--method=cider"], "--data is required for the method cider"),
        (n_best(), ["--method=oracle_cider"], "--references is required"),
        (n_best(), ["--method=mbr", "--tune"], "--tune: the method mbr has nothing to tune"),
        (n_best(), ["--method=worst"], "--method"),
        (n_best(), ["--method=cider", "--k=0"], "--k"),
    ],
)
def test_bad_input_is_one_sentence(lists, arguments, message, rerank, tmp_path):
    done = rerank(lists, *arguments)
    assert done.code == 1
    assert message in done.error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split=test"], "has no split 'test'"),
        (["--job_dir=/nowhere"], "/nowhere holds no config.json"),
        (["--method=combined"], "have no `log_probs`"),
        ([], "1 of 13 images of"),
    ],
)
def test_what_does_not_fit_the_data_is_one_sentence(
    arguments, message, rerank, tiny_data, tiny_job, tmp_path
):
    lists = [{k: v for k, v in each.items() if k != "log_probs"} for each in n_best()]
    if not arguments:
        lists.append({"image_id": "nobody.jpg", "captions": ["a dog"]})
    done = rerank(lists, *near(tiny_data, tiny_job), *arguments)
    assert done.code == 1
    assert message in done.error
    if not arguments:
        assert "nobody.jpg; it has val-" in done.error

"""Caption metrics against pycocoevalcap itself and against sums done by hand."""

import json
import math
import os
import shutil

import programs
import pytest
import tensorflow as tf
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.meteor.meteor import Meteor
from pycocoevalcap.rouge.rouge import Rouge
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

from mrnn_tf.data import demo
from mrnn_tf.errors import UserError
from mrnn_tf.metrics import captions, coco

REFERENCES = {
    1: ["A dog runs.", "A brown dog is running fast!"],
    2: ["The cat sits on a mat", "the cat's mat"],
    "3.jpg": ["A boat", "Two men are in a small BOAT"],
}
RESULTS = {1: "a dog is running", 2: "the cat sits", "3.jpg": "A boat."}
WORDS = {
    1: ["a dog runs", "a brown dog is running fast"],
    2: ["the cat sits on a mat", "the cat's mat"],
    "3.jpg": ["a boat", "two men are in a small boat"],
}
RESULT_WORDS = {1: ["a dog is running"], 2: ["the cat sits"], "3.jpg": ["a boat"]}

needs_java = pytest.mark.skipif(not shutil.which("java"), reason="there is no Java")


def evaluate(references, results, **options):
    return captions.evaluate(references, results, meteor=False, **options)


@pytest.fixture
def fake_java(tmp_path, monkeypatch):
    """Puts a shell script in the place of Java, or nothing."""

    def install(script=None):
        folder = tmp_path / "bin"
        folder.mkdir()
        if script:
            (folder / "java").write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\n{script}\n")
            (folder / "java").chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
        return tmp_path / "pid"

    return install


def has_ended(pid_file):
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
    return True


# Figures


def test_figures_are_those_of_pycocoevalcap(capfd):
    scores = evaluate(REFERENCES, RESULTS)
    assert capfd.readouterr().out == ""
    bleu, _ = Bleu(4).compute_score(WORDS, RESULT_WORDS, verbose=0)
    cider, ciders = Cider().compute_score(WORDS, RESULT_WORDS)
    rouge, rouges = Rouge().compute_score(WORDS, RESULT_WORDS)
    assert cider > 0.5
    assert scores.overall == {
        **{f"bleu_{n}": value for n, value in enumerate(bleu, 1)},
        **{"cider": cider, "rouge_l": rouge, "distinct_words": 8, "mean_length": 3},
        **{"images": 3, "tokenizer": "mrnn"},
    }
    assert scores.per_image == {
        key: {"cider": ciders[row], "rouge_l": rouges[row]} for row, key in enumerate(WORDS)
    }


def test_bleu_by_hand():
    references = {
        1: ["the cat is on the mat", "there is a cat on the mat"],
        2: ["a man rides a horse", "a man on a brown horse outside"],
    }
    results = {1: "the the cat on the mat", 2: "a man rides"}
    overall = evaluate(references, results).overall
    # Matches of 1, 2, 3 words: 2 of the 3 "the" and cat, on, mat in the first; all in the second.
    precisions = [(5 + 3) / 9, (4 + 2) / 7, (2 + 1) / 5]
    penalty = math.exp(1 - (6 + 5) / 9)  # the closest lengths are 6 of (6, 7) and 5 of (5, 7)
    for n in (1, 2, 3):
        expected = penalty * math.prod(precisions[:n]) ** (1 / n)
        assert overall[f"bleu_{n}"] == pytest.approx(expected, abs=1e-6)


def test_the_closest_reference_length_counts_and_of_two_the_shorter():
    references = {1: ["a dog runs on the sand", "on a dog"]}
    overall = evaluate(references, {1: "a dog runs on"}).overall  # 4 words against 6 and 3
    assert overall["bleu_4"] == pytest.approx(1, abs=1e-6)
    references = {1: ["a dog runs on sand", "a dog runs"]}
    overall = evaluate(references, {1: "a dog runs on"}).overall  # 4 words against 5 and 3
    assert overall["bleu_4"] == pytest.approx(1, abs=1e-6)


def test_per_image_figures_average_to_the_whole():
    scores = evaluate(REFERENCES, RESULTS)
    each = [image["cider"] for image in scores.per_image.values()]
    assert scores.overall["cider"] == pytest.approx(sum(each) / 3)


def test_novel_captions_are_compared_by_words():
    training = iter(["A DOG is running!", "a cat", ""])
    assert evaluate(REFERENCES, RESULTS, training=training).overall["novel"] == pytest.approx(2 / 3)
    assert evaluate(REFERENCES, RESULTS, training=[]).overall["novel"] == 1


def test_ids_match_as_text_and_keep_the_form_of_the_references():
    scores = evaluate({1: ["a dog"], "b": ["a cat"]}, {"b": "a cat", "1": "a dog"})
    assert list(scores.per_image) == [1, "b"] and scores.overall["rouge_l"] == 1
    with pytest.raises(ValueError, match="results have an id both as a number and as a text"):
        evaluate({1: ["a dog"]}, {1: "a dog", "1": "a dog"})


# Defined results of odd captions


@pytest.mark.parametrize("caption", ["", " \n", "?!"])
def test_a_result_without_words_scores_0(caption):
    scores = evaluate(REFERENCES, RESULTS | {1: caption})
    assert scores.per_image[1] == {"cider": 0, "rouge_l": 0}
    assert 0 < scores.overall["bleu_1"] < evaluate(REFERENCES, RESULTS).overall["bleu_1"]
    nothing = evaluate(REFERENCES, dict.fromkeys(REFERENCES, caption)).overall
    figures = ("bleu_1", "bleu_4", "cider", "rouge_l", "distinct_words", "mean_length")
    assert [nothing[name] for name in figures] == [0] * 6


def test_a_result_of_one_word():
    scores = evaluate(REFERENCES, RESULTS | {2: "cat"})
    assert scores.per_image[2]["cider"] > 0
    scores = evaluate(REFERENCES, dict.fromkeys(REFERENCES, "a"))
    assert 0 < scores.overall["bleu_1"] < 0.5 and scores.overall["bleu_4"] < 1e-3


def test_a_single_image_has_no_cider():
    scores = evaluate({1: ["a dog runs"]}, {1: "a dog runs"})
    assert scores.overall["cider"] == 0 and scores.overall["rouge_l"] == 1


def test_references_without_words_do_not_count(caplog):
    odd = {1: ["", *REFERENCES[1], "..."], "no": [], "empty": ["", "!"]}
    scores = evaluate(REFERENCES | odd, RESULTS | {"empty": "a dog"})
    assert scores == evaluate(REFERENCES, RESULTS)
    assert "2 images have no references: not scored." in caplog.text
    assert evaluate(REFERENCES | odd, RESULTS | {1: ""}).per_image[1]["rouge_l"] == 0
    with pytest.raises(ValueError, match="None of 2 images has a reference with a word"):
        evaluate({1: [""], 2: []}, {1: "a", 2: "b"})


def test_half_a_surrogate_pair_is_no_word():
    assert captions.tokenize(["a dog \ud83d", "\ud83d"]) == ["a dog", ""]


# Ids that do not match


def test_unknown_images_are_named_and_counted():
    unknown = {name: "a dog" for name in ("x", "y", 7, 8)}
    with pytest.raises(ValueError, match=r"4 of 7 results .* not have: x, y, 7, \.\.\.; the refer"):
        evaluate(REFERENCES, RESULTS | unknown)


def test_missing_images_are_named_and_counted():
    with pytest.raises(ValueError, match=r"2 of 3 images with references have no result: 2, 3.jpg"):
        evaluate(REFERENCES, {1: "a dog"})


def test_an_unknown_tokeniser_is_refused():
    with pytest.raises(ValueError, match="one of mrnn, ptb, treebank, not 'nltk'"):
        evaluate(REFERENCES, RESULTS, tokenizer="nltk")


# Java


def test_without_java_only_meteor_is_left_out(fake_java, caplog):
    fake_java()
    assert captions.evaluate(REFERENCES, RESULTS) == evaluate(REFERENCES, RESULTS)
    assert [record.message for record in caplog.records] == [
        "METEOR is left out: there is no `java` here."
    ]
    with pytest.raises(ValueError, match="ptb needs `java`"):
        evaluate(REFERENCES, RESULTS, tokenizer="ptb")


@pytest.mark.parametrize("script", ["echo no heap >&2; exit 1", "echo no heap >&2; read a; echo"])
def test_a_java_that_fails_leaves_meteor_out(fake_java, caplog, script):
    pid = fake_java(script)
    assert captions.evaluate(REFERENCES, RESULTS) == evaluate(REFERENCES, RESULTS)
    assert "its Java program failed: no heap" in caplog.text
    assert has_ended(pid)


def test_a_java_that_fails_is_no_tokeniser(fake_java):
    fake_java("echo no heap >&2; exit 1")
    with pytest.raises(ValueError, match="ptb failed: no heap"):
        evaluate(REFERENCES, RESULTS, tokenizer="ptb")


def test_meteor_is_read_from_a_process_that_is_ended(fake_java):
    pid = fake_java(
        'while read verb rest; do case "$verb" in SCORE) echo 1 2;; '
        "*) echo 0.25; echo 0.75; echo 0.5; echo 0.375;; esac; done"
    )
    scores = captions.evaluate(REFERENCES, RESULTS)
    assert scores.overall["meteor"] == 0.375
    assert [image["meteor"] for image in scores.per_image.values()] == [0.25, 0.75, 0.5]
    assert has_ended(pid)


@needs_java
@pytest.mark.slow  # METEOR reads its paraphrases for half a minute
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # of pycocoevalcap's own
def test_meteor_is_that_of_pycocoevalcap():
    scores = captions.evaluate(REFERENCES, RESULTS | {2: ""})
    scorer = Meteor()
    mean, each = scorer.compute_score(WORDS, RESULT_WORDS | {2: [""]})
    assert scores.overall["meteor"] == mean > 0.1
    assert [image["meteor"] for image in scores.per_image.values()] == each
    assert each[1] == 0


@needs_java
def test_ptb_words_are_those_of_pycocoevalcap():
    texts = ["", "A dog's toy, (red) in the air.", "", "Ünï -- don't\nstop...", "  1/2 x", ""]
    given = {number: [{"caption": text}] for number, text in enumerate(texts)}
    expected = [words for [words] in PTBTokenizer().tokenize(given).values()]
    assert captions.tokenize(texts, "ptb") == expected
    assert expected[1] == "a dog 's toy -lrb- red -rrb- in the air"


@needs_java
def test_ptb_keeps_captions_with_line_breaks_apart(capfd):
    assert captions.tokenize(["a\rdog", "a\u2028cat\x0b", "\n", "end"], "ptb") == [
        *("a dog", "a cat", "", "end")
    ]
    assert capfd.readouterr() == ("", "")


@needs_java
def test_treebank_words_of_the_demo_are_those_of_ptb():
    texts = [
        text
        for _, _, scene, rng in demo.scenes(0, 1500)
        for _, text in demo.captions.describe(scene, rng)
    ]
    pairs = zip(captions.tokenize(texts, "ptb"), captions.tokenize(texts, "treebank"), strict=True)
    assert [ptb == treebank for ptb, treebank in pairs].count(True) == len(texts) == 7500
    texts = ["A dog's toy, (red) in the air.", "", "Ünï -- don't\nstop...", "1/2 x 20 % & #5;"]
    assert captions.tokenize(texts, "treebank") == captions.tokenize(texts, "ptb")


def test_treebank_needs_no_java(fake_java):
    fake_java()
    texts = ["A Dog's toy, isn't \"red\" (here).", "?!", "a\r\ndog \ud83d"]
    expected = ["a dog 's toy is n't red -lrb- here -rrb-", "", "a dog"]
    assert captions.tokenize(texts, "treebank") == expected
    overall = evaluate(REFERENCES, RESULTS, tokenizer="treebank").overall
    assert overall["tokenizer"] == "treebank" and overall["rouge_l"] > 0.5


# Files


def test_files_hold_what_was_written():
    tf.io.gfile.makedirs("ram://metrics")
    references = REFERENCES | {"none": []}
    coco.write_references("ram://metrics/captions.json", references)
    coco.write_results("ram://metrics/results.json", RESULTS)
    assert coco.read_references("ram://metrics/captions.json") == references
    assert coco.read_results("ram://metrics/results.json") == RESULTS
    assert sorted(tf.io.gfile.listdir("ram://metrics")) == ["captions.json", "results.json"]


def test_annotations_match_listed_images_as_text(write):
    annotation = {"image_id": "1", "caption": "a dog"}
    folder = write({"c.json": {"images": [{"id": 1}, {"id": 1}], "annotations": [annotation]}})
    assert coco.read_references(f"{folder}/c.json") == {1: ["a dog"]}


CAPTION = {"image_id": 1, "caption": "a dog"}


@pytest.mark.parametrize(
    "content, problem",
    [
        ("", "is empty: COCO results are wanted"),
        ("[{", "is not whole JSON"),
        (b"\xff\xfe[]", "is not whole JSON"),
        ("[]", "holds no results"),
        ({"images": [], "annotations": []}, "an object with the keys images, annotations: COCO"),
        ("3", "holds 3: COCO results are wanted"),
        ([CAPTION, "a dog"], r'\[1\] is "a dog": an `image_id` and a text `caption`'),
        ([{"image_id": 1}], r"\[0\] is .* are wanted"),
        ([{"image_id": 1, "caption": None}], r"\[0\] is .* are wanted"),
        ([{"image_id": 1.5, "caption": ""}], r"\[0\] is .* are wanted"),
        ([CAPTION, CAPTION | {"image_id": "1"}], "more than one caption of 1 images"),
    ],
)
def test_foreign_results_are_refused(write, content, problem):
    folder = write({"results.json": content})
    with pytest.raises(ValueError, match=f"results.json.*{problem}"):
        coco.read_results(f"{folder}/results.json")


def test_results_nested_as_deep_as_can_be_read_are_refused(tmp_path):
    path = tmp_path / "results.json"
    for depth in range(850, 1000):  # of the last ones that are read, none could be written
        path.write_text("[" * depth + "]" * depth)
        with pytest.raises(UserError, match=r"results\.json"):
            coco.read_results(str(path))


@pytest.mark.parametrize(
    "content, problem",
    [
        ("", "is empty: COCO captions are wanted"),
        ([CAPTION], "holds a list: COCO captions are wanted"),
        ({"annotations": [CAPTION]}, "holds an object with the keys annotations: COCO"),
        ({"images": [], "annotations": []}, "lists no images"),
        ({"images": [1], "annotations": []}, r"images\[0\] is 1: an id is wanted"),
        ({"images": [{"id": 1}], "annotations": [{}]}, r"annotations\[0\] is {}: an `image_id`"),
        ({"images": [{"id": 2}], "annotations": [CAPTION]}, "1 annotations of images .* list: 1"),
    ],
)
def test_foreign_references_are_refused(write, content, problem):
    folder = write({"captions.json": content})
    with pytest.raises(ValueError, match=f"captions.json.*{problem}"):
        coco.read_references(f"{folder}/captions.json")


# The program


@pytest.fixture
def files(tmp_path):
    coco.write_references(str(tmp_path / "captions.json"), REFERENCES)
    coco.write_results(str(tmp_path / "results.json"), RESULTS)
    return ["--references", tmp_path / "captions.json", "--results", tmp_path / "results.json"]


@pytest.fixture
def metrics(tmp_path):
    return lambda *arguments: programs.run(
        tmp_path, "mrnn_tf.metrics", *arguments, environment={"PATH": str(tmp_path)}
    )


def test_the_program_prints_and_writes_scores(metrics, files, tmp_path):
    output = tmp_path / "scores.json"
    done = metrics(*files, "--training", files[1], "--output", output)
    assert done.code == 0, done.err
    expected = evaluate(REFERENCES, RESULTS, training=["a boat"])
    written = json.loads(output.read_text())
    assert written["overall"] == expected.overall and written["overall"]["tokenizer"] == "mrnn"
    assert written["per_image"] == {str(key): each for key, each in expected.per_image.items()}
    rows = dict(line.rsplit(maxsplit=1) for line in done.out.splitlines())
    assert rows["CIDEr-D"] == f"{expected.overall['cider']:.4f}"
    assert rows["novel captions"] == "66.7%" and "METEOR" not in rows
    assert done.err.count("METEOR is left out: there is no `java`") == 1
    assert not list(tmp_path.glob("*.partial"))


def test_the_program_fails_in_one_sentence(metrics, files, write):
    write({"results.json": [{"image_id": 9, "caption": ""}]})
    done = metrics(*files, "--nometeor")
    assert done.code == 1
    assert done.error.startswith("error: 1 of 1 results are of images that the references do not")
    done = metrics(*files[:2], "--results", "nowhere.json")
    assert done.code == 1 and done.error.startswith("error: There is no file nowhere.json: COCO")
    done = metrics(*files[:2])
    assert done.code == 1 and done.error.startswith("error: --results is required")
    assert "METEOR" not in done.err


def test_the_program_explains_itself(metrics):
    done = metrics("--help")
    assert "python -m mrnn_tf.metrics --references captions.json" in done.out
    assert "--tokenizer: <mrnn|ptb|treebank>" in done.out

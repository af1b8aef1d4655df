"""The paper's tables, made by the program from runs on a tiny dataset of the form of IAPR TC-12."""

import dataclasses
import json
import shutil

import numpy as np
import programs
import pytest
import tiny

from mrnn_tf.errors import UserError
from trainer import train
from trainer.evaluate import EvaluateOptions, evaluate
from trainer.evaluation.captions import GREEDY
from trainer.experiments import claims, figures, results, runs, tables
from trainer.experiments.claims import FAILS, HOLDS, OPEN
from trainer.experiments.results import BEAM, DatasetResults, RunResult
from trainer.experiments.significance import PerImage
from trainer.options import PaperOptions
from trainer.paper import make_tables

TABLES = ("generation", "retrieval", "recurrent", "rerank", "variants")


def make(one):
    """What the two commands of a run make, without starting processes."""
    model, training = one.settings
    train.train(train.TrainOptions(data=one.data, job_dir=one.folder, model=model, train=training))
    given = {"job_dir": one.folder, "data": one.data, "split": one.options.split}
    evaluate(EvaluateOptions(**given, output=one.report, tasks=one.row.tasks, widths=(),
                             meteor=False))  # fmt: skip


def options_of(folder):
    return PaperOptions(
        data=(f"iaprtc12={folder / 'data'}",),
        output=str(folder / "out"),
        preset="demo",
        epochs=6.0,
        rows=("mrnn", "rnn_base"),
        seeds=2,
        tables=TABLES,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs of m-RNN and RNN-Base on images with a sentence each, and the pages of them."""
    folder = tmp_path_factory.mktemp("paper")
    counts = (("train", 48), ("val", 12))
    tiny.write(str(folder / "data"), counts, pictures=True, captions_each=1)
    options = options_of(folder)
    for one in runs.plan(options):
        make(one)
    make_tables(options)
    return folder


@pytest.fixture
def options(folder):
    return options_of(folder)


@pytest.fixture
def content(folder):
    return json.loads((folder / "out" / "paper.json").read_text())


def rows_of(content, table, part=0):
    found = [each for each in content["tables"] if each["name"] == table][part]
    return {(row["name"], row["note"]): row for row in found["rows"]}


def test_our_rows_stand_below_the_published_ones(content):
    rows = rows_of(content, "generation")
    names = [name for name, _ in rows]
    assert names[:7] == ["LBL", "MLBL-B", "MLBL-F", "Gupta et al. 2012", "Gupta & Mannem 2012",
                         "RNN-Base", "m-RNN"]  # fmt: skip
    assert rows["LBL", "test split"]["values"]["perplexity"] == "9.29"
    ours = rows["m-RNN", "beam 5, 2 seeds"]
    assert ours["ours"] and len(ours["values"]["bleu_1"]["values"]) == 2
    values = ours["values"]["perplexity"]
    assert values["mean"] == pytest.approx(sum(values["values"]) / 2) and values["spread"] >= 0
    assert "trainer.task --data=data/iaprtc12 --job_dir=runs/iaprtc12/mrnn-0" in ours["command"]
    assert "trainer.evaluate" in ours["command"]


def test_m_rnn_beats_rnn_base(content):
    rows = rows_of(content, "generation")
    ours, base = (rows[name, "greedy, 2 seeds"]["values"] for name in ("m-RNN", "RNN-Base"))
    assert ours["bleu_1"]["mean"] > base["bleu_1"]["mean"]
    for part in (0, 1):
        rows = rows_of(content, "retrieval", part)
        chance = rows["Chance", "as any network without the image"]["values"]["r_1"]["mean"]
        [best, *_] = [row["values"]["r_1"]["mean"] for row in rows.values()
                      if row["ours"] and row["name"] == "m-RNN"]  # fmt: skip
        assert best > chance


def test_the_curves_of_matches_are_those_of_the_supplement(content, folder):
    [shown] = content["figures"]
    for direction in ("image to text", "text to image"):
        assert shown["matches"][direction][-1] == [100.0, 1.0]
    assert len(shown["recalls"]["text to image"]) == 50
    text = (folder / "out" / "paper.md").read_text()
    assert "those of the 100 nearest images" in text and "| image to text | " in text


def test_every_claim_has_a_verdict_and_its_test(content):
    assert len(content["claims"]) == len(claims.CLAIMS)
    by_claim = {one["claim"]: one for one in content["claims"]}
    image = by_claim["the image makes captions better"]
    assert image["verdict"] == OPEN and "2 of 3 seeds" in image["figures"]
    assert image["test"].startswith("bootstrap over 12 images and 2 seeds, p ")
    assert "no finished run of `nic`" in by_claim[[*by_claim][-1]]["figures"]


def test_the_html_page_has_plots_and_pictures(folder):
    page = (folder / "out" / "paper.html").read_text()
    assert page.count('<figure class="chart"') == 3 and "data:image/jpeg" in page
    assert page.count('class="near"') == 6 and "Claims" in page and "highest gradient norm" in page
    assert "Our runs" in page and "Published" in page and "<script" not in page


def test_pages_say_what_is_missing_and_are_made_without_training(folder, options, tmp_path, capsys):
    runs_dir = shutil.copytree(folder / "out" / "runs", tmp_path / "runs")
    shutil.rmtree(runs_dir / "iaprtc12" / "rnn_base-1")
    options = dataclasses.replace(
        options, output=str(tmp_path / "out"), runs=str(runs_dir), train=False
    )
    page = make_tables(options)
    assert page.missing == ["iaprtc12/rnn_base-1"]
    text = (tmp_path / "out" / "paper.md").read_text()
    assert "1 run is not finished: iaprtc12/rnn_base-1" in text
    assert str(tmp_path) not in text
    assert f"next: open {tmp_path}/out/paper.html" in capsys.readouterr().out
    with pytest.raises(UserError, match="No run is finished"):
        make_tables(dataclasses.replace(options, runs=str(tmp_path / "none")))


def test_the_program_goes_on_and_tells_what_failed_after_writing(folder, tmp_path):
    """Nothing is lost by a run that cannot be made: the pages of the others are there."""
    runs_dir = shutil.copytree(folder / "out" / "runs", tmp_path / "runs")
    shutil.rmtree(runs_dir / "iaprtc12" / "rnn_base-1")
    (runs_dir / "iaprtc12" / "rnn_base-1").mkdir()
    (runs_dir / "iaprtc12" / "rnn_base-1" / "notes.txt").write_text("not a run")
    done = programs.run(
        tmp_path, "trainer.paper", "--data", f"iaprtc12={folder / 'data'}", "--runs", runs_dir,
        "--output", tmp_path / "out", "--preset=demo", "--epochs=6", "--rows=mrnn,rnn_base",
        "--seeds=2", f"--tables={','.join(TABLES)}",
    )  # fmt: skip
    assert done.code == 1
    assert "1 of 4 runs failed, the first is iaprtc12/rnn_base-1: --job_dir" in done.error
    assert "is no run directory" in done.error
    assert (tmp_path / "out" / "paper.md").exists()


def test_the_server_s_table_takes_five_and_forty_references(options):
    [one, *_] = runs.plan(options)
    captions = {"1": "a red dog", "2": "a blue boat"}
    references = {"1": ["a red dog here"] * 39 + ["a red dog"], "2": ["the blue boat"] * 40}

    def result(references):
        run = RunResult(
            one, {}, {"captions": {"captions": {"greedy": captions, "beam 5": captions}}}
        )
        run.__dict__["references"] = references  # not read from a file
        return DatasetResults("coco", {"mrnn": [run]}, [])

    [table] = tables.make("server", result(references))
    values = {row.note: row.cells["bleu_3"].values[0] for row in table.rows if row.is_ours}
    assert [*values] == [
        f"{way}, {c}, 1 seed" for c in ("c5", "c40") for way in ("greedy", "beam 5")
    ]
    assert values["greedy, c40, 1 seed"] > values["greedy, c5, 1 seed"]
    assert len([row for row in table.rows if not row.is_ours]) == 4
    fewer = {image: texts[:7] for image, texts in references.items()}
    [table] = tables.make("server", result(fewer))
    assert table.note == "c40 is left out: an image has 7 references."
    none = {image: texts[:1] for image, texts in references.items()}
    assert tables.make("server", result(none)) == []
    [note] = tables.notes(("server",), result(none))
    assert "needs 5 references of every image, and one has 1" in note


class Given(RunResult):
    """A run that has only what its scores say."""

    @property
    def gradient_norms(self):
        high = 2 * self.scores["peak"]  # the first one is of the warm-up
        return [(100, 1000.0), (150, 2.0), (200, 2.0), (250, high), (300, 1.0)]

    def cider(self, decoding=""):
        noise = np.random.default_rng(0).normal(0, 0.1, 200)
        return PerImage.of_values(self.scores["cider"] + noise)

    def bleu(self, order, decoding=""):
        noise = np.random.default_rng(0).normal(0, 0.1, 200)
        return PerImage.of_values(self.scores["bleu"] + noise)


class Planned:
    settings = None, train.TrainConfig()


def given(key, rows):
    """Results with a score of every seed by row; the other scores are 1."""
    made = {
        row: [
            Given(Planned(), {"peak": 1, "cider": 1, "bleu": 1, key: value}, {}) for value in values
        ]
        for row, values in rows.items()
    }
    return DatasetResults("tiny", made, [])


@pytest.mark.parametrize(
    ("relu", "others", "verdict"),
    [
        ([2, 3, 4], [20, 30, 40], HOLDS),
        ([2, 3, 4], [2, 3, 4], FAILS),
        ([20, 30, 40], [20, 30, 40], FAILS),
        ([2, 3, 4], [2, 30, 40], OPEN),
        ([2, 3], [20, 30], OPEN),
    ],
)
def test_gradients_explode_where_they_are_far_above_a_run_s_own(relu, others, verdict):
    results = given("peak", {"mrnn": relu, "sigmoid": others, "scaled_tanh": others})
    found = claims.exploding_gradients(results)
    assert found.verdict == verdict
    if verdict == HOLDS:
        assert "ReLU 3.0 (0 of 3 runs above 10)" in found.figures and "p .050" in found.test


def test_runs_that_logged_no_gradients_are_no_evidence(monkeypatch):
    monkeypatch.setattr(Given, "gradient_norms", [])
    rows = {row: [1, 1, 1] for row in ("mrnn", "sigmoid", "scaled_tanh")}
    found = claims.exploding_gradients(given("peak", rows))
    assert (found.verdict, found.figures) == (OPEN, "runs are missing")


@pytest.mark.parametrize(
    ("slow", "verdict"),
    [([1.2, 1.21, 1.2], HOLDS), ([0.8, 0.81, 0.8], FAILS), ([0.9, 1.2, 1.0], OPEN)],
)
def test_small_rates_are_needed_where_they_are_better(slow, verdict, monkeypatch):
    monkeypatch.setattr(claims, "_perplexity", lambda runs: 20.0)
    rows = {"vis_in_rnn": [1.0, 1.01, 1.0], "vis_in_rnn_slow": slow}
    found = claims.small_rates(given("cider", rows))
    assert found.verdict == verdict
    assert "perplexity 20.00 and 20.00" in found.figures
    assert "vis_in_rnn 1.0 (0 of 3 runs above 10)" in found.figures


def test_an_evaluation_of_another_version_is_told_in_a_sentence():
    class Older(Planned):
        report = "runs/tiny/mrnn_shared-0/report/val"

    run = RunResult(Older(), {}, {"rerank": {"captions": {}}})
    with pytest.raises(UserError, match=r"mrnn_shared-0/report/val was evaluated without .*nnref"):
        run.captions("nnref-cider")


@pytest.mark.parametrize(("cider", "verdict"), [(1.0, FAILS), (0.5, OPEN)])
def test_measures_that_disagree_tell_nothing(cider, verdict, monkeypatch):
    monkeypatch.setattr(claims, "_perplexity", lambda runs: 20.0)
    results = given("cider", {"mrnn": [1.0] * 3, "one_layer_emb": [cider] * 3})
    for run in results.get("one_layer_emb"):
        run.scores["bleu"] = 1.2
    claim = next(one for one in claims.CLAIMS if getattr(one, "worse", one) != one
                 and one.worse.row == "one_layer_emb")  # fmt: skip
    found = claim(results)
    assert found.verdict == verdict
    assert ("the measures disagree" in found.figures) == (verdict == OPEN)


@pytest.mark.parametrize(
    ("share", "images", "verdict"),
    [(0.71, 1000, HOLDS), (0.9, 1000, FAILS), (0.71, 50, OPEN), (0.755, 1000, OPEN)],
)
def test_a_share_is_the_paper_s_where_its_interval_is_near(share, images, verdict):
    shares = {"novel": share, "images": images}
    scores = {"captions": {GREEDY: shares, BEAM: shares}}
    runs_of = [RunResult(Planned(), scores, {})] * 3
    assert claims.novel_captions(DatasetResults("coco", {"mrnn": runs_of}, [])).verdict == verdict


def test_the_chance_of_a_random_order():
    assert tables._found(1, 5, 5000) == pytest.approx(0.001)
    assert tables._found(10, 1, 10) == 1.0
    assert tables._found(2, 1, 4) == pytest.approx(0.5)


def test_a_dataset_without_ranked_runs_has_no_figures():
    assert figures.make(DatasetResults("tiny", {}, ["mrnn-0"])) is None
    assert results.read([]) == []


def test_help_has_an_example(tmp_path):
    done = programs.run(tmp_path, "trainer.paper", "--help")
    assert "--data flickr8k=data/flickr8k" in done.out and "--jobs" in done.out
    done = programs.run(tmp_path, "trainer.paper", "--data", "x")
    assert done.code == 1 and "--output is required" in done.error

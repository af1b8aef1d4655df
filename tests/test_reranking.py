"""The table and the figure of reranking, as an evaluation shows them."""

import dataclasses
import re

import pytest
import tiny

from mrnn_tf.metrics import captions as metrics
from mrnn_tf.run import Run
from trainer import reranking
from trainer.captioning import Captioned, Sentences
from trainer.methods import Settings
from trainer.neighbourhood import Neighbourhood


def right(i):
    return f"a {tiny.COLOURS[i % 3]} {tiny.THINGS[i % 4]}"


def wrong(i):
    return f"a {tiny.COLOURS[(i + 1) % 3]} {tiny.THINGS[(i + 2) % 4]}"


def captioned(i, references=True):
    captions = (wrong(i), wrong(i + 1), right(i), f"<{right(i)}> boat boat boat")
    return Captioned(
        image_id=f"val-{i}.jpg",
        references=tuple(tiny.captions_of(i % 3, i % 4)) if references else (),
        rows={},
        beam=Sentences((), ()),
        n_best=Sentences(captions, (-4.0, -4.1, -4.2, -9.0)),
        words=(),
        word_log_probs=(),
        evidence=(),
    )


@pytest.fixture(scope="module")
def reranked(tiny_data, tiny_job, tmp_path_factory):
    run = Run.load(tiny_job)
    data = tiny.write(str(tmp_path_factory.mktemp("pictures") / "data"), pictures=True)
    silent = dataclasses.replace(captioned(11), n_best=Sentences((), ()))
    images = [*map(captioned, range(11)), silent]
    settings = Settings(k=2, m=6)
    return reranking.rerank(run, tiny_data, run.source(data, "val"), images, settings)


def test_the_rows_are_those_of_the_paper_s_table(reranked):
    assert list(reranked.rows) == [
        "top-1",
        "mbr",
        "neighbours-bleu",
        "neighbours-cider",
        "combined",
        "oracle_bleu",
        "oracle_cider",
    ]
    references = {f"val-{i}.jpg": tiny.captions_of(i % 3, i % 4) for i in range(11)}
    for row, caption in (("top-1", wrong), ("neighbours-cider", right), ("oracle_cider", right)):
        expected = metrics.evaluate(
            references, {f"val-{i}.jpg": caption(i) for i in range(11)}, meteor=False
        )
        assert reranked.rows[row] == pytest.approx(expected.overall), row
    assert reranked.rows["oracle_cider"]["cider"] > reranked.rows["top-1"]["cider"] + 0.5


def test_the_section_has_the_table_and_the_ranks(reranked):
    assert reranked.heading == "Consensus reranking"
    for row, values in reranked.rows.items():
        cells = re.search(rf"<span>{row}</span>(.*?)</tr>", reranked.section)[1]
        assert f"{values['cider']:.3f}".removeprefix("0") in cells
    assert "m-RNN-shared-NNref-CIDEr" in reranked.section
    assert reranked.section.count("<svg") == reranked.section.count("data:image/jpeg") == 6
    assert reranked.section.count("&lt;a") == 6  # what a system says is text, not HTML
    assert re.search(r"CIDEr \+\d\.\d\d", reranked.section)


def test_the_ranks_are_before_and_after(reranked):
    first = re.search(r"<svg.*?</svg>", reranked.section)[0]
    captions = re.findall(r'font-weight="(\d+)">(.*?) <tspan', first)
    assert [weight for weight, _ in captions] == ["600", "400", "400", "400"]
    image = int(re.search(r"val-(\d+)", reranked.section)[1])
    assert captions[0][1] == right(image)
    ranks = re.findall(r'text-anchor="middle">(\d)<', first)
    assert ranks[:2] == ["3", "1"] and sorted(ranks[::2]) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("features", ["whitened", "refined", "original"])
def test_a_training_image_is_not_its_own_neighbour(features, tiny_data, tiny_job):
    run = Run.load(tiny_job)
    training = Neighbourhood(run, tiny_data, features)
    ids = [f"train-{i}.jpg" for shard in range(2) for i in range(shard, 24, 2)]
    for image_id, near in training.nearest(run.source(tiny_data, "train"), k=1).items():
        [other] = near.images
        same = int(image_id[6:-4]) % 12  # images of one colour and thing are 12 apart
        assert ids[other] != image_id and int(ids[other][6:-4]) % 12 == same
    whole = training.nearest(run.source(tiny_data, "train"), k=30)[ids[0]]
    assert sorted(whole.images[:23]) == list(range(1, 24))


def test_images_without_references_have_a_figure_only(tiny_data, tiny_job):
    run = Run.load(tiny_job)
    images = [captioned(i, references=False) for i in range(4)]
    found = reranking.rerank(run, tiny_data, run.source(tiny_data, "val"), images, Settings(k=2))
    assert found.rows == {}
    assert "<table" not in found.section and found.section.count("<svg") == 4

"""What an evaluation says of reranking: figures, and images whose first caption changed."""

import dataclasses

import pytest
import tiny

from mrnn_tf.consensus.reranking import RerankSettings
from mrnn_tf.metrics import captions as metrics
from mrnn_tf.metrics.nbest import NBest
from mrnn_tf.run import Run
from mrnn_tf.split import Split
from trainer.evaluation import rerank


def right(i):
    return f"a {tiny.COLOURS[i % 3]} {tiny.THINGS[i % 4]}"


def wrong(i):
    return f"a {tiny.COLOURS[(i + 1) % 3]} {tiny.THINGS[(i + 2) % 4]}"


def hypotheses(images):
    return {
        f"val-{i}.jpg": NBest(
            (wrong(i), wrong(i + 1), right(i), f"<{right(i)}> boat boat boat"),
            (-4.0, -4.1, -4.2, -9.0),
        )
        for i in images
    }


@pytest.fixture(scope="module")
def run(tiny_job):
    return Run.load(tiny_job)


@pytest.fixture(scope="module")
def splits(run, tiny_data):
    return {name: Split.read(run, tiny_data, name) for name in ("train", "val")}


@pytest.fixture(scope="module")
def reranked(run, splits):
    n_best = {**hypotheses(range(11)), "val-11.jpg": NBest(())}
    settings = RerankSettings(k=2, m=6)
    return rerank.rerank_split(run, splits["val"], splits["train"], n_best, settings)


def test_the_rows_are_those_of_the_paper_s_table(reranked):
    assert list(reranked.figures) == [
        "top-1",
        "mbr",
        "neighbours-bleu",
        "neighbours-cider",
        "combined",
        "nnref-bleu",
        "nnref-cider",
        "oracle_bleu",
        "oracle_cider",
    ]
    references = {f"val-{i}.jpg": tiny.captions_of(i % 3, i % 4) for i in range(11)}
    for row, caption in (("top-1", wrong), ("neighbours-cider", right), ("oracle_cider", right)):
        expected = metrics.evaluate(
            references, {f"val-{i}.jpg": caption(i) for i in range(11)}, meteor=False
        )
        assert reranked.figures[row] == pytest.approx(expected.overall), row
    assert reranked.figures["oracle_cider"]["cider"] > reranked.figures["top-1"]["cider"] + 0.5


def test_the_changes_are_of_images_that_gain_most_little_and_least(reranked):
    assert len({change.image_id for change in reranked.changes}) == len(reranked.changes) == 6
    gains = [change.gain for change in reranked.changes]
    assert gains == sorted(gains, reverse=True) and gains[0] > 0.5
    for change in reranked.changes:
        assert change.captions == hypotheses(range(12))[change.image_id].captions
        assert change.order[0] == 2 and sorted(change.order) == [0, 1, 2, 3]
        ranked = [change.scores[place] for place in change.order]
        assert ranked == sorted(change.scores, reverse=True)


@pytest.mark.parametrize("features", ["whitened", "refined", "original"])
def test_a_training_image_is_not_its_own_neighbour(features, run, splits):
    training = splits["train"]
    images, _ = rerank.find_neighbours(run, training, training, training.ids, 1, features)
    for image_id, [other] in zip(training.ids, images, strict=True):
        same = int(image_id[6:-4]) % 12  # images of one colour and thing are 12 apart
        other = training.ids[other]
        assert other != image_id and int(other[6:-4]) % 12 == same
    whole, _ = rerank.find_neighbours(run, training, training, training.ids[:1], 30, features)
    assert sorted(whole[0, :23]) == list(range(1, 24))


def test_images_without_references_have_changes_only(run, splits):
    silent = dataclasses.replace(splits["val"], captions=((),) * len(splits["val"]))
    settings = RerankSettings(k=2)
    found = rerank.rerank_split(run, silent, splits["train"], hypotheses(range(4)), settings)
    assert found.figures == {}
    assert [change.gain for change in found.changes] == [None] * 4


def test_training_images_need_captions(run, splits):
    silent = dataclasses.replace(splits["train"], captions=((),) * len(splits["train"]))
    with pytest.raises(ValueError, match="have no captions"):
        rerank.rerank_split(run, splits["val"], silent, hypotheses(range(4)), RerankSettings())
    with pytest.raises(ValueError, match="`features` must be one of whitened"):
        rerank.find_neighbours(run, silent, silent, [], 1, "raw")

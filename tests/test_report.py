import base64
import dataclasses
import html.parser
import itertools
import re
import types

import numpy as np
import pytest
import tensorflow as tf

from mrnn_tf.captioner import Caption, Word
from trainer.report import page as page_module
from trainer.report import plots
from trainer.report.page import Example, Report, render

VOID = {"meta", "img"}


class Page(html.parser.HTMLParser):
    """Reads a page, insisting that every tag is closed in its turn."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.elements = [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "text": "", **dict(attrs)}
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.elements.append({"tag": tag, "text": "", **dict(attrs)})

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, tag=None, kind=None):
        return [
            e
            for e in self.elements
            if tag in (None, e["tag"]) and (kind is None or kind in e.get("class", "").split())
        ]


SAID = [("a", -0.1, -0.5), ("dog", -1.0, 3.0), ("runs", -0.3, 0.75), ("</s>", -0.1, 0.1)]
WORDS = tuple(itertools.starmap(Word, SAID))


def example(number=0, cider=None, **changes) -> Example:
    given = Example(
        image_id=f"{number}.jpg",
        references=("A dog runs.", "There is a dog"),
        captions=[Caption("a dog runs", -1.5, WORDS), Caption("a dog", -2.25), Caption("dogs", -3)],
        cider=cider,
    )
    return dataclasses.replace(given, **changes)


def report(**changes) -> Report:
    given = Report(
        title="A run",
        facts={"dataset": "flickr8k", "split": "val"},
        scores={"greedy": {"bleu_4": 0.171, "perplexity": 17.5}, "beam 5": {"bleu_4": 0.213}},
        curves={
            "train perplexity": [(10, 500.0), (20, 30.0), (30, 20.0)],
            "validation perplexity": [(10, 60.0), (20, 25.0), (30, 26.0)],
            "learning rate": [(10, 0.001), (30, 0.0)],
        },
        nearest_words={"dog": ["puppy", "cat"]},
        examples=(example(),),
    )
    return dataclasses.replace(given, **changes)


def reranked(captions=("a cat", "a dog", "", "dogs"), count=1, **changes):
    """What an evaluation gives of consensus reranking."""
    changes_ = [
        types.SimpleNamespace(
            image_id=f"{i}.jpg",
            captions=captions,
            order=(1, 0, 3, 2),
            scores=(0.5, 0.75, 0.1, 0.2),
            gain=0.5 - i,
        )
        for i in range(count)
    ]
    figures = {"top-1": {"bleu_4": 0.2, "cider": 0.9}, "oracle_cider": {"cider": 1.1234}}
    return types.SimpleNamespace(**{"figures": figures, "changes": changes_, **changes})


def ranked(query="a dog", result="1.jpg"):
    """What an evaluation gives of retrieval."""
    recalls = {"r_1": 12.34, "r_5": 20.0, "r_10": 40.0, "median_rank": 3.0, "queries": 1234}
    curve = [(0.0, 0.0), (50.0, 0.8), (100.0, 1.0)]
    searches = [(query, [(result, -3.5, True), ("2.jpg", -4.0, False)])]
    return types.SimpleNamespace(
        figures={"text to image": recalls, "image to text, sample": recalls},
        curves={"text to image": curve, "image to text": curve},
        softmax_share=0.125,
        searches={"text to image": searches, "image to text": searches},
    )


def page(**changes) -> Page:
    return Page(render(report(**changes)))


def test_the_page_needs_no_other_file_and_no_script(photographs):
    text = render(
        report(
            pictures={"0.jpg": photographs[0]},
            reranking=reranked(),
            ranking=ranked(),
        )
    )
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text)
    assert len(Page(text).all("img")) == 2
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in text
    assert not Page(text).all("script") + Page(text).all("link")
    assert all(e["src"].startswith("data:") for e in Page(text).all("img"))
    assert all(e["href"].startswith("#section-") for e in Page(text).all("a"))


def test_every_text_is_escaped():
    bad = "<b>\"'&"
    hostile = example(
        image_id=bad,
        references=(bad,),
        captions=[Caption(bad, -1.0, (Word(bad, -1.0, 1.0),)), Caption(bad, -2.0)],
    )
    wordless = dataclasses.replace(hostile, captions=[Caption(bad, -1.0), Caption(bad, -2.0)])
    shown = page(
        title=bad,
        facts={"dataset": bad, bad: bad},
        scores={bad: {"bleu_4": 0.1, bad: 1.0}},
        curves={bad: [(1, 2.0)]},
        nearest_words={bad: [bad]},
        examples=(hostile, wordless),
        pictures={bad: b""},
        headline=bad,
        reranking=reranked((bad,) * 4, figures={bad: {"cider": 0.1}}),
        reranking_note=bad,
        ranking=ranked(bad, bad),
    )
    legends = {"text to image", "image to text, among the sentences of the 100 nearest images"}
    assert {e["text"] for e in shown.all("b")} == {bad, *legends}  # names in charts, right results
    assert shown.all("h1")[0]["text"] == bad
    assert shown.all("li")[-1]["text"] == f"{bad} -2.00"
    assert [e["text"] for e in shown.all(kind="caption")] == [bad, bad]
    assert [e["text"] for e in shown.all("tspan")] == ["0.750", "0.500", "0.200", "0.100"]
    assert next(e["text"] for e in shown.all("text") if bad in e["text"]) == f"{bad} 0.750"
    assert f"This run, {bad}" in [e["text"] for e in shown.all("tr")]
    assert [e["text"] for e in shown.all("dt")].count(bad) == 4  # a fact, a word, two searches


def test_the_paper_stands_beside_ours_with_its_dataset():
    rows = [e["text"].replace("\u2013", "-") for e in page().all("tr")]
    assert "greedy flickr8k, val17.50---.171---" in rows
    assert "beam 5 flickr8k, val----.213---" in rows
    theirs = rows[rows.index("The paper (Mao et al. 2015)") + 1 :]
    assert theirs[0] == "Flickr8K m-RNN, AlexNet, test split24.39.565.386.256.170---"
    assert any("13.60.67.49.35.25" in row for row in theirs)
    assert not any(
        "NIC" in row for row in theirs
    )  # other models are in the tables of trainer.paper
    assert [e["text"].split()[0] for e in page().all("tr", "same")] == ["Flickr8K"]


@pytest.mark.parametrize(
    ("dataset", "first", "rows"), [("coco", "MS COCO", 5), ("iaprtc12", "IAPR", 2)]
)
def test_rows_on_the_same_dataset_come_first(dataset, first, rows):
    shown = page(facts={"dataset": dataset})
    assert all(e["text"].startswith(first) for e in shown.all("tr", "same"))
    assert len(shown.all("tr", "same")) == rows
    assert shown.all("tr", "same")[0] is shown.all("tr")[len(report().scores) + 3]
    shown = page(facts={"dataset": dataset}, scores={}, ranking=ranked())
    assert all(first in e["text"] for e in shown.all("tr", "same"))
    assert len(shown.all("tr", "same")) == 2 and len(shown.all("tr", "other")) == 8


@pytest.mark.parametrize("facts", [{"dataset": "demo"}, {"dataset": ""}, {}])
def test_other_data_is_said_to_be_no_comparison(facts):
    shown = page(facts=facts)
    assert not shown.all("tr", "same") and len(shown.all("tr", "other")) == 10
    assert "no comparison" in shown.all("p", "remark")[0]["text"]


def test_the_headline_row_gives_the_key_figures():
    def figures(shown):
        return shown.all("dl", "figures")[0]["text"]

    assert figures(page()) == "BLEU-4, greedy.171Perplexity, greedy17.50"
    assert figures(page(headline="beam 5")) == "BLEU-4, beam 5.213Perplexity, greedy17.50"


def test_metrics_without_a_column_have_their_own_table():
    scores = {"greedy": {"bleu_4": 0.2}, "beam": {"distinct_words": 1200.0, "novel": 0.415}}
    rows = [e["text"] for e in page(scores=scores).all("tr")]
    assert rows[-2:] == ["distinct wordsnovel", "beam 1,2000.415"]


def test_shades_follow_the_evidence():
    words = [e for e in page().all("span", "word") if "title" in e]
    shades = {e["text"]: float(e["style"].removeprefix("--shade:")) for e in words}
    assert shades["a"] == 0 < shades["end"] < shades["runs"] < shades["dog"] < 1
    assert page().all("p", "caption")[0]["text"] == "a dog runs end"
    assert words[1]["title"] == "evidence +3.00 nats, probability 0.368"


def cards(shown: Page) -> dict[str, list[str]]:
    """The names of the images under every heading of the examples."""
    groups = {}
    for element in shown.elements:
        if element["tag"] == "h3":
            names = groups.setdefault(element["text"], [])
        elif element.get("class") == "meta":
            names.append(re.search(r"(\d+)\.jpg", element["text"])[1])
    return groups


def test_the_best_the_worst_and_some_in_between():
    order = np.random.default_rng(0).permutation(100)
    groups = cards(page(examples=tuple(example(i, cider=i / 10) for i in order)))
    assert list(groups) == ["Best by CIDEr", "In between", "Worst by CIDEr, the worst first"]
    best, between, worst = ([int(name) for name in names] for names in groups.values())
    assert best == list(range(99, 87, -1)) and worst == list(range(12))
    assert between == sorted(between, reverse=True) and len(between) == 4
    assert min(between) >= 12 and max(between) < 88


@pytest.mark.parametrize("count", [1, 2, 5, 24, 25])
def test_few_images_are_shown_once_each(count):
    shown = page(examples=tuple(example(i, cider=float(i)) for i in range(count)))
    names = [name for names in cards(shown).values() for name in names]
    assert sorted(names, key=int) == [str(i) for i in range(count)]
    assert len(shown.all("article", "card")) == count


def test_images_without_references_are_the_first_ones():
    shown = page(examples=tuple(example(i, references=()) for i in range(30)), scores={})
    assert cards(shown) == {"The first images": [str(i) for i in range(24)]}
    assert not shown.all("ul", "references") and not shown.all("table")


def test_pictures_are_small_jpegs():
    noise = np.random.default_rng(0).integers(0, 255, (600, 900, 3), np.uint8)
    large = tf.io.encode_png(noise).numpy()
    narrow = tf.io.encode_png(noise[:, :100]).numpy()
    pictures = {"0.jpg": large, "1.jpg": narrow, "2.jpg": b"no"}
    shown = page(examples=tuple(map(example, range(4))), pictures=pictures)
    sizes = []
    for picture in shown.all("img"):
        head, data = picture["src"].split(",")
        assert head == "data:image/jpeg;base64"
        height, width, _ = tf.io.decode_jpeg(base64.b64decode(data)).shape
        assert (str(width), str(height)) == (picture["width"], picture["height"])
        sizes.append((width, height))
    assert sizes == [(320, 213), (80, 480)]
    missing = ["the picture cannot be decoded", "no picture in the records"]
    assert [e["text"] for e in shown.all("p", "no-picture")] == missing


def test_the_file_stays_small_however_many_images():
    noise = np.random.default_rng(0).integers(0, 255, (90, 120, 3), np.uint8)
    photo = np.asarray(tf.image.resize(noise, [375, 500], "bicubic")).clip(0, 255).astype(np.uint8)
    picture = tf.io.encode_jpeg(photo).numpy()
    given = report(examples=tuple(example(i, i / 9) for i in range(500)))
    assert len(given.shown) == 28
    text = render(dataclasses.replace(given, pictures=dict.fromkeys(given.shown, picture)))
    assert text.count("<img ") == 28 and len(text) < 3_000_000


def test_other_captions_are_folded():
    given = example(captions=[Caption("a dog", -1.0), Caption("", -2.0)])
    [folded] = page(examples=(given,)).all("details")
    assert folded["text"] == "1 more caption, with log P(empty) -2.00"


@pytest.mark.parametrize("captions", [(), ("",)])
def test_an_image_without_caption(captions):
    silent = example(captions=[Caption(text, -1.0) for text in captions])
    shown = page(examples=(silent,))
    assert shown.all("p", "caption")[0]["text"] == "no caption"
    assert not shown.all("details") and not shown.all(kind="legend")


def test_an_empty_report_is_a_page():
    shown = Page(render(Report("Nothing", {}, {}, {}, {}, ())))
    assert shown.all("h1")[0]["text"] == "Nothing" and not shown.all("section")


def test_sections_are_linked_in_order():
    shown = page(reranking=reranked(), ranking=ranked())
    headings = [e["text"] for e in shown.all("h2")]
    assert headings == [
        "Scores",
        "Consensus reranking",
        "Search",
        "Curves",
        "Words",
        "Examples",
    ]
    assert [e["text"] for e in shown.all("a")] == headings
    assert [e["href"][1:] for e in shown.all("a")] == [e["id"] for e in shown.all("section")]


def test_reranking_stands_beside_the_paper_s():
    shown = page(scores={}, reranking=reranked(), reranking_note="k 60, 24 training images")
    rows = [e["text"].replace("\u2013", "-") for e in shown.all("tr")]
    assert rows[:4] == [
        "BLEU-1BLEU-2BLEU-3BLEU-4CIDErROUGE-LMETEOR",
        "This run, k 60, 24 training images",
        "top-1 ---.200.900--",
        "oracle_cider ----1.123--",
    ]
    theirs = rows[rows.index("The paper (Mao et al. 2015)") + 1 :]
    assert len(theirs) == 8
    assert theirs[2] == "m-RNN-shared-NNref-CIDEr MS COCO val.714.543.406.304.938.519.239"


def test_ranks_before_and_after_reranking(photographs):
    shown = page(
        scores={},
        examples=(),
        reranking=reranked(count=2),
        pictures={"0.jpg": photographs[0]},
    )
    assert len(shown.all("figure", "ranks")) == 2 and len(shown.all("img")) == 1
    assert [e["text"] for e in shown.all("figcaption", "meta")] == [
        "0.jpg CIDEr +0.50",
        "1.jpg CIDEr -0.50",
    ]
    texts = shown.all("text")
    captions = [(e["text"], e["font-weight"]) for e in texts if "font-weight" in e][:4]
    assert captions == [
        ("a dog 0.750", "600"),
        ("a cat 0.500", "400"),
        ("dogs 0.200", "400"),
        ("(empty) 0.100", "400"),
    ]
    ranks = [e["text"] for e in texts if e.get("text-anchor") == "middle"][:10]
    assert ranks == ["before", "after", "2", "1", "1", "2", "4", "3", "3", "4"]


def test_reranking_without_references_has_no_table_and_no_gain():
    given = reranked(figures={})
    given.changes[0].gain = None
    shown = page(scores={}, reranking=given)
    assert not shown.all("table") and len(shown.all("figure", "ranks")) == 1
    assert shown.all("figcaption", "meta")[0]["text"] == "0.jpg"
    assert "Consensus reranking" not in [
        e["text"] for e in page(reranking=reranked(figures={}, changes=[])).all("h2")
    ]


def test_the_search_stands_beside_the_paper_s():
    shown = page(scores={}, examples=(), curves={}, nearest_words={}, ranking=ranked())
    rows = [e["text"] for e in shown.all("tr")]
    assert rows[:3] == [
        "R@1R@5R@10Med r",
        "This run",
        "text to image 1,234 queries12.320.040.03.0",
    ]
    theirs = rows[rows.index("The paper (Mao et al. 2015)") + 1 :]
    assert len(theirs) == 10
    assert theirs[0] == "image to text Flickr8K, AlexNet14.537.248.511"
    assert "text to image IAPR TC-12, AlexNet13.231.240.821" in theirs
    assert "took 12.5% of the softmax rows" in shown.all("p", "remark")[0]["text"]
    assert len(shown.all("figure", "chart")) == 1 and len(shown.all("polyline")) == 2
    assert [e["text"] for e in shown.all("h3")] == ["Images of a sentence", "Sentences of an image"]
    assert [e["text"] for e in shown.all("ol")[0:1]] == ["\n1.jpg -3.50\n2.jpg -4.00\n"]
    assert "1.jpg" in [e["text"] for e in shown.all("b")]


def test_every_published_row_has_the_columns_of_its_table():
    columns = {
        "generation": page_module.SCORE_METRICS,
        "rerank": page_module.CAPTION_METRICS,
        "retrieval": page_module.RANK_METRICS,
    }
    for table, metrics in columns.items():
        rows = report().published(table)
        assert rows and all(row["model"] and row["conditions"] for row in rows)
        assert all(row["values"] and row["values"].keys() <= metrics.keys() for row in rows)
        assert all(float(value) > 0 for row in rows for value in row["values"].values())


def test_curves_that_measure_alike_share_a_chart():
    charts = page().all("figure", "chart")
    assert len(charts) == 2 and len(page().all("polyline")) == 3
    assert "validation perplexity lowest 25 at step 20" in charts[0]["text"]
    assert "learning rate last 0 at step 30" in charts[1]["text"]


def points(chart: str) -> np.ndarray:
    [line] = Page(chart).all("polyline")
    return np.array([pair.split(",") for pair in line["points"].split()], float)


def test_lines_stay_in_the_chart_and_fall_where_values_fall():
    for values in ([500.0, 50.0, 5.0], [3.0, 2.0, 1.0]):
        chart = plots.line_chart("cost", {"cost": list(zip((10, 20, 30), values, strict=True))})
        x, y = points(chart).T
        assert np.all(np.diff(x) > 0) and np.all(np.diff(y) > 0)  # y grows downwards
        assert np.all((x >= 0) & (x <= 480) & (y >= 0) & (y <= 270))
        assert np.isclose(np.diff(y)[0], np.diff(y)[1], atol=0.2)
        assert ("logarithmic" in chart) == (values[0] == 500)


def labels(chart: str, axis: str) -> list[str]:
    return [e["text"] for e in Page(chart).all("text", axis)]


def test_labels_are_round_and_few():
    chart = plots.line_chart("cost", {"cost": [(0, 480.0), (1_200_000, 3.0)]})
    assert labels(chart, "of-steps") == ["0", "500,000", "1,000,000"]
    assert labels(chart, "of-values") == ["5", "10", "20", "50", "100", "200"]
    chart = plots.line_chart("rate", {"rate": [(0, 0.0015), (40, 0.0)]})
    assert labels(chart, "of-values") == ["0", "0.0005", "0.001", "0.0015"]
    diverged = plots.line_chart("cost", {"cost": [(0, 3.0), (40, 1e30)]})
    assert 2 <= len(labels(diverged, "of-values")) <= 7


def test_values_that_are_no_numbers_are_passed_over():
    line = [(1, 4.0), (2, float("nan")), (3, float("inf")), (4, 2.0)]
    assert len(points(plots.line_chart("cost", {"cost": line}))) == 2
    assert plots.line_chart("cost", {"cost": line[1:3], "other": []}) == ""


@pytest.mark.parametrize("value", [0.0, 3.0, -2.0])
def test_a_single_point_is_a_chart(value):
    assert len(points(plots.line_chart("cost", {"cost": [(0, value)]}))) == 1


def test_long_lines_are_thinned_but_keep_their_lowest_and_last():
    line = [(step, 10.0 + step % 7) for step in range(10_000)]
    line[4321] = (4321, 1.0)
    chart = plots.line_chart("cost", {"cost": line}, mark_lowest=True)
    assert len(points(chart)) < 500
    assert "lowest 1 at step 4,321" in chart and points(chart)[-1, 0] == 468


def test_a_heat_map_shades_its_cells_and_marks_the_best():
    cells = [(0.1, "B4 .1\nC .2"), (0.3, "<b>"), (0.2, "x"), (0.2, "y")]
    first = plots.HeatTable("by & by", ["k 1", "k 2"], ["m 1", "m 2"], cells)
    level = plots.HeatTable("level", ["k 1"], ["m 1", "m 2"], [(0.1, "z"), (0.1, "z")])
    text = plots.heat_map([first, level], "tuned & drawn")
    assert text.startswith("<svg")
    shown = Page(text)
    background, *squares = shown.all("rect")
    assert background["width"] == "100%" and len(squares) == 6
    shades = [float(e["fill-opacity"]) for e in squares[:4]]
    assert shades[0] < shades[2] == shades[3] < shades[1]
    marked = [e.get("stroke") is not None for e in squares]
    assert marked == [False, True, False, False, True, False]
    assert [e["text"] for e in shown.all("text")] == [
        *("tuned & drawn", "by & by", "m 1", "m 2"),
        *("k 1", "B4 .1", "C .2", "<b>", "k 2", "x", "y"),
        *("level", "m 1", "m 2", "k 1", "z", "z"),
    ]
    _, _, width, height = map(int, shown.all("svg")[0]["viewbox"].split())
    assert all(int(e["x"]) + 88 < width and int(e["y"]) + 42 < height for e in squares)

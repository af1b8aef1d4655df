import base64
import dataclasses
import html.parser
import re

import numpy as np
import pytest
import tensorflow as tf

from trainer import plots
from trainer.report import Example, Report, render

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


def example(number=0, cider=None, **changes) -> Example:
    given = Example(
        image_id=f"{number}.jpg",
        image=None,
        references=("A dog runs.", "There is a dog"),
        captions=("a dog runs", "a dog", "dogs"),
        log_probs=(-1.5, -2.25, -3.0),
        words=("a", "dog", "runs", "</s>"),
        word_log_probs=(-0.1, -1.0, -0.3, -0.1),
        evidence=(-0.5, 3.0, 0.75, 0.1),
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


def page(**changes) -> Page:
    return Page(render(report(**changes)))


def test_the_page_needs_no_other_file_and_no_script(photographs):
    text = render(report(examples=(example(image=photographs[0]),)))
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text)
    assert not Page(text).all("script") + Page(text).all("link")
    assert all(e["src"].startswith("data:") for e in Page(text).all("img"))
    assert all(e["href"].startswith("#section-") for e in Page(text).all("a"))


def test_every_text_is_escaped():
    bad = "<b>\"'&"
    hostile = example(
        image_id=bad,
        references=(bad,),
        captions=(bad, bad),
        log_probs=(-1.0, -2.0),
        words=(bad,),
        word_log_probs=(-1.0,),
        evidence=(1.0,),
    )
    shown = page(
        title=bad,
        facts={"dataset": bad, bad: bad},
        scores={bad: {"bleu_4": 0.1, bad: 1.0}},
        curves={bad: [(1, 2.0)]},
        nearest_words={bad: [bad]},
        examples=(hostile, dataclasses.replace(hostile, words=(), image=b"")),
        sections=((bad, "<i>kept</i>"),),
    )
    assert {e["text"] for e in shown.all("b")} == {bad}  # only the name in the chart's legend
    assert shown.all("h1")[0]["text"] == bad
    assert shown.all("li")[-1]["text"] == f"{bad} -2.00"
    assert [e["text"] for e in shown.all(kind="caption")] == [bad, bad]
    assert shown.all("i")[0]["text"] == "kept"


def test_the_paper_stands_beside_ours_with_its_dataset():
    rows = [e["text"].replace("\u2013", "-") for e in page().all("tr")]
    assert "greedy flickr8k, val17.50---.171---" in rows
    assert "beam 5 flickr8k, val----.213---" in rows
    theirs = rows[rows.index("The paper (Mao et al. 2015)") + 1 :]
    assert theirs[0] == "Flickr8K m-RNN, AlexNet, test split24.39.565.386.256.170---"
    assert "13.60.67.49.35.25" in theirs[3]
    assert [e["text"].split()[0] for e in page().all("tr", "same")] == ["Flickr8K"]


@pytest.mark.parametrize(
    ("dataset", "first", "rows"), [("coco", "MS COCO", 4), ("iaprtc12", "IAPR", 1)]
)
def test_rows_on_the_same_dataset_come_first(dataset, first, rows):
    shown = page(facts={"dataset": dataset})
    assert all(e["text"].startswith(first) for e in shown.all("tr", "same"))
    assert len(shown.all("tr", "same")) == rows
    assert shown.all("tr", "same")[0] is shown.all("tr")[len(report().scores) + 3]


@pytest.mark.parametrize("facts", [{"dataset": "demo"}, {"dataset": ""}, {}])
def test_other_data_is_said_to_be_no_comparison(facts):
    shown = page(facts=facts)
    assert not shown.all("tr", "same") and len(shown.all("tr", "other")) == 8
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
    shown = page(examples=(example(image=large), example(image=narrow), example(image=b"no")))
    sizes = []
    for picture in shown.all("img"):
        head, data = picture["src"].split(",")
        assert head == "data:image/jpeg;base64"
        height, width, _ = tf.io.decode_jpeg(base64.b64decode(data)).shape
        assert (str(width), str(height)) == (picture["width"], picture["height"])
        sizes.append((width, height))
    assert sizes == [(320, 213), (80, 480)]
    assert [e["text"] for e in shown.all("p", "no-picture")] == ["the picture cannot be decoded"]


def test_the_file_stays_small_however_many_images():
    noise = np.random.default_rng(0).integers(0, 255, (90, 120, 3), np.uint8)
    photo = np.asarray(tf.image.resize(noise, [375, 500], "bicubic")).clip(0, 255).astype(np.uint8)
    picture = tf.io.encode_jpeg(photo).numpy()
    text = render(report(examples=tuple(example(i, i / 9, image=picture) for i in range(500))))
    assert text.count("<img ") == 28 and len(text) < 3_000_000


def test_other_captions_are_folded_without_filler():
    given = example(captions=("a dog", "", "", ""), log_probs=(-1.0, -2.0, -3.4e38, -3.4e38))
    [folded] = page(examples=(given,)).all("details")
    assert folded["text"] == "1 more caption, with log P(empty) -2.00"


@pytest.mark.parametrize("captions", [(), ("",)])
def test_an_image_without_caption(captions):
    silent = example(
        captions=captions,
        log_probs=(-1.0,) * len(captions),
        words=(),
        word_log_probs=(),
        evidence=(),
    )
    shown = page(examples=(silent,))
    assert shown.all("p", "caption")[0]["text"] == "no caption"
    assert not shown.all("details") and not shown.all(kind="legend")


def test_an_empty_report_is_a_page():
    shown = Page(render(Report("Nothing", {}, {}, {}, {}, ())))
    assert shown.all("h1")[0]["text"] == "Nothing" and not shown.all("section")


def test_sections_are_linked_in_order():
    shown = page(sections=(("Retrieval", "<table><tr><td>R@1</td></tr></table>"),))
    headings = [e["text"] for e in shown.all("h2")]
    assert headings == ["Scores", "Retrieval", "Curves", "Words", "Examples"]
    assert [e["text"] for e in shown.all("a")] == headings
    assert [e["href"][1:] for e in shown.all("a")] == [e["id"] for e in shown.all("section")]


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

import pytest

from mrnn_tf.data.listing import CaptionedImage
from mrnn_tf.data.readers import read_dataset


def test_jsonl_defaults(tmp_path, write, problems):
    lines = [
        '{"image": "sub/a.jpg", "captions": ["caf\u00e9"]}',
        "",
        '{"image": "b.jpg"}\r',
        '{"image": "c.jpg", "captions": [], "split": null, "id": null}',
        '{"image": "d.jpg", "captions": ["d"], "split": "val", "id": "dee"}',
        '{"image": "e.jpg", "split": "train", "id": 5, "licence": 4}',
    ]
    path = tmp_path / "mine.jsonl"
    write({"mine.jsonl": "\ufeff" + "\n".join(lines)})
    assert read_dataset("jsonl", str(path), problems) == [
        CaptionedImage("sub/a.jpg", "train", ("caf\u00e9",), str(tmp_path / "sub" / "a.jpg")),
        CaptionedImage("b.jpg", "test", (), str(tmp_path / "b.jpg")),
        CaptionedImage("c.jpg", "test", (), str(tmp_path / "c.jpg")),
        CaptionedImage("dee", "val", ("d",), str(tmp_path / "d.jpg")),
        CaptionedImage("5", "train", (), str(tmp_path / "e.jpg")),
    ]
    assert len(problems) == 0


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b'{"image": "a.jpg"', "line that is not JSON"),
        (b'{"image": "caf\xe9.jpg"}', "line that is not Unicode"),
        (rb'{"image": "a.jpg", "captions": ["half an emoji \ud83d"]}', "line that is not Unicode"),
        (b'["a.jpg"]', "line that is not a JSON object"),
        (b'{"captions": ["a"]}', "`image` is not a file name"),
        (b'{"image": 7}', "`image` is not a file name"),
        (b'{"image": ""}', "`image` is not a file name"),
        (b'{"image": "a.jpg", "captions": "a"}', "`captions` is not a list of strings"),
        (b'{"image": "a.jpg", "captions": ["a", 1]}', "`captions` is not a list of strings"),
        (b'{"image": "a.jpg", "split": "dev"}', "`split` is not one of train, val, test"),
        (b'{"image": "a.jpg", "split": ["val"]}', "`split` is not one of train, val, test"),
        (b'{"image": "a.jpg", "id": 1.5}', "`id` is neither a string nor an integer"),
        (b'{"image": "a.jpg", "id": true}', "`id` is neither a string nor an integer"),
    ],
)
def test_a_bad_jsonl_line_is_reported_and_the_others_are_read(
    line, kind, tmp_path, write, problems
):
    source = write({"captions.jsonl": b'{"image": "1.jpg"}\n%s\n{"image": "3.jpg"}' % line})
    images = read_dataset("jsonl", source, problems)
    assert [image.image_id for image in images] == ["1.jpg", "3.jpg"]
    assert problems.names(kind) == [str(tmp_path / "captions.jsonl") + ":2"]
    assert len(problems) == 1

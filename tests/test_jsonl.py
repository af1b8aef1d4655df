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
        (b'{"image": "a.jpg", "id": %s}' % (b"9" * 5000), "line that is not JSON"),
        (b"[" * 100_000, "line that is not JSON"),
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


@pytest.mark.parametrize(
    ("line", "misspelt", "meant"),
    [
        (b'{"image": "2.jpg", "caption": ["a dog"]}', "caption", "captions"),
        (b'{"image": "2.jpg", "Captions": ["a dog"]}', "Captions", "captions"),
        (b'{"image": "2.jpg", "captions": ["a dog"], "splt": "val"}', "splt", "split"),
    ],
)
def test_a_misspelt_key_is_reported(line, misspelt, meant, tmp_path, write, problems):
    source = write({"captions.jsonl": b'{"image": "1.jpg", "split": "test"}\n%s' % line})
    assert len(read_dataset("jsonl", source, problems)) == 2
    kind = f"key `{misspelt}`, where `{meant}` may be meant"
    assert problems.names(kind) == [str(tmp_path / "captions.jsonl") + ":2"]


def test_splits_are_made_where_none_are_given(write, problems):
    lines = [f'{{"image": "{i}.jpg", "captions": ["a dog"]}}' for i in range(1000)]
    images = read_dataset("jsonl", write({"captions.jsonl": "\n".join(lines)}), problems)
    counts = [sum(image.split == split for image in images) for split in ("train", "val", "test")]
    assert 760 < counts[0] < 840
    assert all(70 < count < 130 for count in counts[1:])
    # An image keeps its split when others are added.
    source = write({"captions.jsonl": "\n".join([*lines[500:], '{"image": "plain.jpg"}'])})
    fewer = read_dataset("jsonl", source, problems)
    assert fewer[:-1] == images[500:]
    assert fewer[-1].split == "test"
    # One split that is given says that the others are meant as they are.
    given = '{"image": "given.jpg", "captions": ["a cat"], "split": "val"}'
    source = write({"captions.jsonl": "\n".join([*lines, given])})
    splits = [image.split for image in read_dataset("jsonl", source, problems)]
    assert splits == ["train"] * 1000 + ["val"]
    assert len(problems) == 0

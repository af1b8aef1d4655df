import collections
import json

import pytest
import tensorflow as tf

from mrnn_tf.data.listing import CaptionedImage, Problems
from mrnn_tf.data.readers import READERS, coco, read_dataset


@pytest.fixture
def problems():
    return Problems()


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, bytes):
            text = content if isinstance(content, str) else json.dumps(content)
            content = text.encode()
        path.write_bytes(content)
    return str(folder)


def splits(images):
    return {image.image_id: image.split for image in images}


def captions(images):
    return {image.image_id: list(image.captions) for image in images}


# All readers.


@pytest.mark.parametrize("name", READERS)
def test_an_empty_folder_is_one_sentence(name, tmp_path, problems):
    with pytest.raises(FileNotFoundError) as error:
        read_dataset(name, str(tmp_path), problems)
    message = str(error.value)
    assert str(tmp_path) in message
    assert message.endswith(".") and ". " not in message and "\n" not in message


def test_an_unknown_dataset_and_a_missing_source_are_named(tmp_path, problems):
    with pytest.raises(ValueError, match=r"flickr8k, .*jsonl, received 'flickr9k'"):
        read_dataset("flickr9k", str(tmp_path), problems)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_dataset("jsonl", str(tmp_path / "nowhere"), problems)


def test_a_source_without_any_image_says_why(tmp_path, problems):
    source = write(tmp_path, {"captions.jsonl": "{\n"})
    with pytest.raises(ValueError, match=r"no image \(1 x line that is not JSON: .*:1\)"):
        read_dataset("jsonl", source, problems)
    source = write(tmp_path, {"captions.jsonl": ""})
    with pytest.raises(ValueError, match="lists are empty"):
        read_dataset("jsonl", source, Problems())


def test_captions_are_stripped_and_empty_ones_and_duplicate_images_dropped(tmp_path, problems):
    lines = [
        {"image": "a.jpg", "captions": [" A Dog,  running. \n", "", " \t"], "split": "val"},
        {"image": "b.jpg", "captions": ["b"]},
        {"image": "a.jpg", "captions": ["later", ""], "split": "train"},
        {"image": "b.jpg", "captions": ["later"]},
    ]
    source = write(tmp_path, {"captions.jsonl": "\n".join(map(json.dumps, lines))})
    assert read_dataset("jsonl", source, problems) == [
        CaptionedImage("a.jpg", "val", ("A Dog,  running.",), str(tmp_path / "a.jpg")),
        CaptionedImage("b.jpg", "train", ("b",), str(tmp_path / "b.jpg")),
    ]
    assert problems.names("empty caption") == ["a.jpg", "a.jpg"]
    assert problems.names("duplicate image id") == ["a.jpg", "b.jpg"]
    assert len(problems) == 4


# Flickr.

FLICKR8K_TOKENS = """\
1_a.jpg#0\tA child in a pink dress .
1_a.jpg#1\tA girl # 2 going in .
2_b.jpg#0\tTwo dogs
3_c.jpg#0\tA caf\u00e9 \u2028 in Z\u00fcrich
2258277193_586949ec62.jpg.1#0\tpeople waiting for the subway
2258277193_586949ec62.jpg.1#1\tSome people
"""
FLICKR8K_LISTS = {
    "Flickr_8k.trainImages.txt": "2_b.jpg\n1_a.jpg\n",
    "Flickr_8k.devImages.txt": "3_c.jpg",
    "Flickr_8k.testImages.txt": "4_d.jpg\n",
}


@pytest.mark.parametrize("text_folder", ["", "Flickr8k_text/"])
@pytest.mark.parametrize("image_folder", ["Flicker8k_Dataset", "Flickr8k_Dataset"])
def test_flickr8k_as_published(text_folder, image_folder, tmp_path, problems):
    texts = {"Flickr8k.token.txt": FLICKR8K_TOKENS} | FLICKR8K_LISTS
    files = {text_folder + name: content for name, content in texts.items()}
    source = write(tmp_path, files | {f"{image_folder}/1_a.jpg": "any"})
    images = read_dataset("flickr8k", source, problems)
    assert captions(images) == {
        "2_b.jpg": ["Two dogs"],
        "1_a.jpg": ["A child in a pink dress .", "A girl # 2 going in ."],
        "3_c.jpg": ["A caf\u00e9 \u2028 in Z\u00fcrich"],
        "4_d.jpg": [],
    }
    assert list(splits(images).items()) == [
        ("2_b.jpg", "train"),
        ("1_a.jpg", "train"),
        ("3_c.jpg", "val"),
        ("4_d.jpg", "test"),
    ]
    assert images[0].path == str(tmp_path / image_folder / "2_b.jpg")
    assert problems.names("image in no split") == ["2258277193_586949ec62.jpg.1"]
    assert problems.names("listed image without captions") == ["4_d.jpg"]
    assert len(problems) == 2


def test_flickr8k_with_short_names_and_without_a_test_list(tmp_path, problems):
    files = {
        "captions.token.txt": "\ufeff1_a.jpg#0\ta\r\n2_b.jpg#0\tb\r\n\r\n2_b.jpg#1\t\r\n",
        "train.txt": "1_a.jpg \r\n\r\n",
        "val.txt": "2_b.jpg\r\n",
    }
    images = read_dataset("flickr8k", write(tmp_path, files), problems)
    assert images == [
        CaptionedImage("1_a.jpg", "train", ("a",), str(tmp_path / "images" / "1_a.jpg")),
        CaptionedImage("2_b.jpg", "val", ("b",), str(tmp_path / "images" / "2_b.jpg")),
    ]
    assert problems.counts() == {"empty caption": 1}


def test_flickr_lines_that_are_malformed_or_not_utf8(tmp_path, problems):
    tokens = b"1.jpg#0\ta\n1.jpg#1 no tab\n1.jpg\tno number\n1.jpg#2\tcaf\xe9 \x93bar\x94\n"
    source = write(tmp_path, {"captions.token.txt": tokens, "train.txt": "1.jpg"})
    images = read_dataset("flickr8k", source, problems)
    assert captions(images) == {"1.jpg": ["a", "caf\u00e9 \u201cbar\u201d"]}
    path = str(tmp_path / "captions.token.txt")
    assert problems.names("malformed line") == [f"{path}:2", f"{path}:3"]
    assert problems.names("line not in UTF-8") == [f"{path}:4"]


def test_an_image_in_two_flickr_lists_stays_in_the_first(tmp_path, problems):
    files = {"captions.token.txt": "1.jpg#0\ta", "val.txt": "1.jpg", "train.txt": "1.jpg\n1.jpg"}
    images = read_dataset("flickr8k", write(tmp_path, files), problems)
    assert splits(images) == {"1.jpg": "train"}
    assert problems.counts() == {"duplicate image id": 2}


def test_flickr30k_takes_lists_with_and_without_extension(tmp_path, problems):
    files = {
        "results_20130124.token": "10.jpg#0\ta\n20.jpg#0\tb\n30.jpg#0\tc\n",
        "train.txt": "10\n",
        "test.txt": "20.jpg\n",
        "flickr30k-images/10.jpg": "any",
    }
    images = read_dataset("flickr30k", write(tmp_path, files), problems)
    assert splits(images) == {"10.jpg": "train", "20.jpg": "test"}
    assert images[0].path == str(tmp_path / "flickr30k-images" / "10.jpg")
    assert problems.names("image in no split") == ["30.jpg"]


def test_flickr30k_without_lists_points_to_karpathy(tmp_path, problems):
    source = write(tmp_path, {"results_20130124.token": "10.jpg#0\ta\n"})
    with pytest.raises(FileNotFoundError, match=r"no split list.*dataset_flickr30k\.json"):
        read_dataset("flickr30k", source, problems)


def test_sources_may_be_remote(problems):
    with tf.io.gfile.GFile("ram://flickr/captions.token.txt", "w") as file:
        file.write("1.jpg#0\ta\n")
    with tf.io.gfile.GFile("ram://flickr/val.txt", "w") as file:
        file.write("1.jpg\n")
    images = read_dataset("flickr8k", "ram://flickr", problems)
    assert images == [CaptionedImage("1.jpg", "val", ("a",), "ram://flickr/images/1.jpg")]


# COCO.


def coco_file(part, image_ids, texts=("A {}\n", "The {}")):
    return {
        "info": {"year": 2014},
        "images": [
            {"id": i, "file_name": f"COCO_{part}_{i:012d}.jpg", "height": 480} for i in image_ids
        ],
        "annotations": [
            {"image_id": i, "id": 9, "caption": text.format(i)} for text in texts for i in image_ids
        ],
    }


def image_list(part, image_ids):
    content = coco_file(part, image_ids)
    del content["annotations"]
    return content


@pytest.mark.parametrize("annotations", ["", "annotations/"])
@pytest.mark.parametrize("images_in", ["", "images/"])
def test_coco_trains_on_train_and_cuts_val(annotations, images_in, tmp_path, problems):
    files = {
        f"{annotations}captions_train2014.json": coco_file("train2014", [9, 25]),
        f"{annotations}captions_val2014.json": coco_file("val2014", range(100, 110)),
        f"{annotations}captions_val2014_fakecap_results.json": [],
        f"{images_in}train2014/a.jpg": "any",
    }
    images = read_dataset("coco", write(tmp_path, files), problems)
    assert images[0] == CaptionedImage(
        "9",
        "train",
        ("A 9", "The 9"),
        str(tmp_path / images_in / "train2014" / "COCO_train2014_000000000009.jpg"),
    )
    assert collections.Counter(splits(images).values()) == {"train": 2, "val": 8, "test": 2}
    assert len(problems) == 0


def test_coco_cut_is_the_papers_and_depends_on_ids_and_seed_only():
    image_ids = [str(i) for i in range(5100)]
    cut = coco.cut_validation(image_ids, seed=0)
    assert collections.Counter(cut.values()) == {"val": 4000, "test": 1000}
    assert cut == coco.cut_validation(reversed(image_ids), seed=0)
    assert cut != coco.cut_validation(image_ids, seed=1)
    test_ids = [int(i) for i, split in cut.items() if split == "test"]
    assert 2300 < sum(test_ids) / 1000 < 2800  # drawn from everywhere
    # The very images, so that no later change moves the split under a published figure.
    assert sorted(test_ids)[:5] == [2, 3, 6, 14, 15]


def test_coco_seed_reaches_the_cut(tmp_path, problems):
    source = write(tmp_path, {"captions_val2017.json": coco_file("val2017", range(100))})
    cuts = [splits(read_dataset("coco", source, problems, seed)) for seed in (0, 1, 0)]
    assert cuts[0] == cuts[2] != cuts[1]


def test_coco_quirks_are_reported(tmp_path, problems):
    content = coco_file("train2014", [1])
    content["images"] += [{"id": 2, "file_name": "2.jpg"}, {"id": 3}]
    content["annotations"] += [{"image_id": 77, "caption": "whose?"}, {"image_id": 1}]
    source = write(tmp_path, {"captions_train2014.json": content})
    images = read_dataset("coco", source, problems)
    assert captions(images) == {"1": ["A 1", "The 1"], "2": []}
    path = str(tmp_path / "captions_train2014.json")
    assert problems.names("captions of an unknown image") == [f"{path}: image 77"]
    assert problems.names("malformed entry") == [f"{path}: images[2]", f"{path}: annotations[3]"]
    assert problems.names("listed image without captions") == ["2"]


def test_coco_image_list_alone_is_for_testing(tmp_path, problems):
    source = write(
        tmp_path, {"annotations/image_info_test-dev2015.json": image_list("test2015", [1])}
    )
    assert read_dataset("coco", source, problems) == [
        CaptionedImage(
            "1", "test", (), str(tmp_path / "test2015" / "COCO_test2015_000000000001.jpg")
        )
    ]
    assert len(problems) == 0


def test_coco_image_list_beside_captions_is_skipped_unless_it_is_the_source(tmp_path, problems):
    path = tmp_path / "annotations" / "image_info_test2014.json"
    source = write(
        tmp_path,
        {
            "annotations/captions_train2014.json": coco_file("train2014", [1]),
            "annotations/image_info_test2014.json": image_list("test2014", [2]),
        },
    )
    assert splits(read_dataset("coco", source, problems)) == {"1": "train"}
    assert problems.names("image list skipped beside captions") == [str(path)]
    [image] = read_dataset("coco", str(path), problems)
    assert image.split == "test"
    assert image.path == str(tmp_path / "test2014" / "COCO_test2014_000000000002.jpg")


def test_coco_refuses_two_years_and_two_image_lists(tmp_path, problems):
    content = coco_file("any", [1])
    names = ["captions_train2017.json", "captions_val2014.json"]
    source = write(tmp_path / "years", dict.fromkeys(names, content))
    with pytest.raises(ValueError, match=", ".join(names)):
        read_dataset("coco", source, problems)
    names = ["image_info_test-dev2015.json", "image_info_test2015.json"]
    source = write(tmp_path / "lists", dict.fromkeys(names, content))
    with pytest.raises(ValueError, match=", ".join(names)):
        read_dataset("coco", source, problems)


@pytest.mark.parametrize("content", ['{"images": [', "[]", '{"annotations": []}', b"\xff\xfe\xff"])
@pytest.mark.parametrize(
    ("name", "file"), [("coco", "captions_val2014.json"), ("karpathy", "dataset_coco.json")]
)
def test_a_broken_json_file_is_named(name, file, content, tmp_path, problems):
    with pytest.raises(ValueError, match=file):
        read_dataset(name, write(tmp_path, {file: content}), problems)


# Karpathy.


def karpathy_entry(name, split, *texts, **more):
    sentences = [{"raw": text, "tokens": text.lower().split(), "sentid": 0} for text in texts]
    return {"filename": name, "split": split, "imgid": 0, "sentences": sentences, **more}


def test_karpathy_coco(tmp_path, problems):
    entries = [
        karpathy_entry("t.jpg", "train", "T one.", "T two.", filepath="train2014", cocoid=1),
        karpathy_entry("r.jpg", "restval", "R", filepath="val2014", cocoid=2),
        karpathy_entry("v.jpg", "val", "V", filepath="val2014", cocoid=3),
        karpathy_entry("s.jpg", "test", filepath="val2014", cocoid=4),
        karpathy_entry("x.jpg", "unknown", "X", filepath="val2014"),
        {"filename": "m.jpg", "split": "train"},
        karpathy_entry("n.jpg", "train") | {"sentences": [{"raw": None}]},
    ]
    content = {"dataset": "coco", "images": entries}
    files = {"dataset_coco.json": content, "images/val2014/v.jpg": "any"}
    images = read_dataset("karpathy", write(tmp_path, files), problems)
    assert splits(images) == {"t.jpg": "train", "r.jpg": "train", "v.jpg": "val", "s.jpg": "test"}
    assert images[0].captions == ("T one.", "T two.")
    assert images[0].path == str(tmp_path / "train2014" / "t.jpg")
    assert images[1].path == str(tmp_path / "images" / "val2014" / "r.jpg")
    assert problems.names("image in no split") == ["x.jpg"]
    assert problems.names("listed image without captions") == ["s.jpg"]
    path = str(tmp_path / "dataset_coco.json")
    assert problems.names("malformed entry") == [f"{path}: images[5]", f"{path}: images[6]"]


@pytest.mark.parametrize("folder", ["images", "Flicker8k_Dataset", "flickr30k-images", ""])
def test_karpathy_flickr_finds_the_image_folder(folder, tmp_path, problems):
    content = {"images": [karpathy_entry("a.jpg", "val", "A")]}
    files = {"dataset.json": content, f"{folder}/a.jpg": "any"}
    [image] = read_dataset("karpathy", write(tmp_path, files), problems)
    assert image == CaptionedImage("a.jpg", "val", ("A",), str(tmp_path / folder / "a.jpg"))


def test_karpathy_of_several_files_wants_one(tmp_path, problems):
    files = {
        f"dataset_{name}.json": {"images": [karpathy_entry(f"{name}.jpg", "test", "a")]}
        for name in ("coco", "flickr8k")
    }
    source = write(tmp_path, files)
    with pytest.raises(ValueError, match=r"dataset_coco\.json, dataset_flickr8k\.json"):
        read_dataset("karpathy", source, problems)
    images = read_dataset("karpathy", f"{source}/dataset_flickr8k.json", problems)
    assert splits(images) == {"flickr8k.jpg": "test"}


# IAPR TC-12.


def annotation(description):
    return (
        "<DOC>\n<DOCNO>annotations/00/25.eng</DOCNO>\n<TITLE>Plaza de Armas & caf\u00e9</TITLE>\n"
        f"<DESCRIPTION>{description}\n<NOTES>a note;</NOTES>\n<IMAGE>images/00/25.jpg</IMAGE>\n"
        "</DOC>\n"
    ).encode("cp1252")


@pytest.mark.parametrize(
    ("description", "sentences"),
    [
        (
            "a yellow building; two people & a car;</DESCRIPTION>",
            ["a yellow building", "two people & a car"],
        ),
        ("a caf\u00e9 \u2013 open</DESCRIPTION>", ["a caf\u00e9 \u2013 open"]),
        ("a sign &quot;stop&quot;; a\ntree; ;</DESCRIPTION>", ['a sign "stop"', "a\ntree"]),
        ("never closed; 3 < 4;", ["never closed", "3 < 4"]),
    ],
)
@pytest.mark.parametrize("folders", [("", ""), ("iaprtc12/", "iaprtc12.20091111/")])
def test_iaprtc12(description, sentences, folders, tmp_path, problems):
    root, lists = folders
    files = {
        f"{root}annotations_complete_eng/00/25.eng": annotation(description),
        f"{root}annotations_complete_eng/01/1000.eng": annotation("a boy;</DESCRIPTION>"),
        f"{root}annotations_complete_eng/01/1001.eng": annotation("unused;</DESCRIPTION>"),
        f"{root}annotations_complete_eng/02/2.eng": b"<DOC></DOC>",
        f"{lists}iaprtc12_train_list.txt": "00/25\r\n02/2\r\n40/7\r\n",
        f"{lists}iaprtc12_test_list.txt": "01/1000\n",
    }
    images = read_dataset("iaprtc12", write(tmp_path, files), problems)
    assert captions(images) == {"00/25": sentences, "02/2": [], "40/7": [], "01/1000": ["a boy"]}
    assert list(splits(images).values()) == ["train", "train", "train", "test"]
    assert images[0].path == str(tmp_path / root / "images" / "00" / "25.jpg")
    assert problems.names("listed image without captions") == ["02/2", "40/7"]
    assert problems.names("image in no split") == ["01/1001"]
    assert len(problems) == 3


def test_iaprtc12_without_a_list_names_it(tmp_path, problems):
    files = {
        "annotations_complete_eng/00/25.eng": annotation("a;</DESCRIPTION>"),
        "iaprtc12_train_list.txt": "00/25\n",
    }
    with pytest.raises(FileNotFoundError, match=r"iaprtc12_test_list\.txt"):
        read_dataset("iaprtc12", write(tmp_path, files), problems)


# jsonl.


def test_jsonl_defaults(tmp_path, problems):
    lines = [
        '{"image": "sub/a.jpg", "captions": ["caf\u00e9"]}',
        "",
        '{"image": "b.jpg"}\r',
        '{"image": "c.jpg", "captions": [], "split": null, "id": null}',
        '{"image": "d.jpg", "captions": ["d"], "split": "val", "id": "dee"}',
        '{"image": "e.jpg", "split": "train", "id": 5, "licence": 4}',
    ]
    path = tmp_path / "mine.jsonl"
    write(tmp_path, {"mine.jsonl": "\ufeff" + "\n".join(lines)})
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
def test_a_bad_jsonl_line_is_reported_and_the_others_are_read(line, kind, tmp_path, problems):
    source = write(
        tmp_path, {"captions.jsonl": b'{"image": "1.jpg"}\n%s\n{"image": "3.jpg"}' % line}
    )
    assert list(splits(read_dataset("jsonl", source, problems))) == ["1.jpg", "3.jpg"]
    assert problems.names(kind) == [str(tmp_path / "captions.jsonl") + ":2"]
    assert len(problems) == 1

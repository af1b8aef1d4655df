import json

import pytest
import tensorflow as tf

from mrnn_tf.data.listing import CaptionedImage, Problems, cut_validation
from mrnn_tf.data.readers import READERS, read_dataset


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


def test_a_source_without_any_image_says_why(write, problems):
    source = write({"captions.jsonl": "{\n"})
    with pytest.raises(ValueError, match=r"no image \(1 x line that is not JSON: .*:1\)"):
        read_dataset("jsonl", source, problems)
    source = write({"captions.jsonl": ""})
    with pytest.raises(ValueError, match="lists are empty"):
        read_dataset("jsonl", source, Problems())


def test_captions_are_stripped_and_empty_ones_and_duplicate_images_dropped(
    tmp_path, write, problems
):
    lines = [
        {"image": "a.jpg", "captions": [" A Dog,  running. \n", "", " \t"], "split": "val"},
        {"image": "b.jpg", "captions": ["b"]},
        {"image": "a.jpg", "captions": ["later", ""], "split": "train"},
        {"image": "b.jpg", "captions": ["later"]},
    ]
    source = write({"captions.jsonl": "\n".join(map(json.dumps, lines))})
    assert read_dataset("jsonl", source, problems) == [
        CaptionedImage("a.jpg", "val", ("A Dog,  running.",), str(tmp_path / "a.jpg")),
        CaptionedImage("b.jpg", "train", ("b",), str(tmp_path / "b.jpg")),
    ]
    assert problems.names("empty caption") == ["a.jpg", "a.jpg"]
    assert problems.names("duplicate image id") == ["a.jpg", "b.jpg"]
    assert len(problems) == 4


def test_datasets_are_joined(tmp_path, write, problems):
    line = {"image": "1.jpg", "captions": ["a dog"], "split": "train"}
    flickr = {"captions.token.txt": "1.jpg#0\ta\n", "val.txt": "1.jpg\n"}
    files = {f"flickr/{name}": content for name, content in flickr.items()}
    root = write({**files, "coco/captions.jsonl": line})
    images = read_dataset("flickr8k,jsonl", f"{root}/flickr,{root}/coco/", problems)
    assert [(image.image_id, image.split) for image in images] == [
        ("flickr/1.jpg", "val"), ("coco/1.jpg", "train"),
    ]  # fmt: skip
    assert [image.path for image in images] == [
        f"{root}/flickr/images/1.jpg", f"{root}/coco/1.jpg",
    ]  # fmt: skip
    for sources in (f"{root}/coco", f"{root}/coco,{root}/coco", f"{root}/a,{root}/b,{root}/c"):
        with pytest.raises(ValueError, match="need 2 sources with different names"):
            read_dataset("flickr8k,jsonl", sources, problems)


def test_sources_may_be_remote(problems):
    with tf.io.gfile.GFile("ram://flickr/captions.token.txt", "w") as file:
        file.write("1.jpg#0\ta\n")
    with tf.io.gfile.GFile("ram://flickr/val.txt", "w") as file:
        file.write("1.jpg\n")
    images = read_dataset("flickr8k", "ram://flickr", problems)
    assert images == [CaptionedImage("1.jpg", "val", ("a",), "ram://flickr/images/1.jpg")]


@pytest.mark.parametrize("content", ['{"images": [', "[]", '{"annotations": []}', b"\xff\xfe\xff"])
@pytest.mark.parametrize(
    ("name", "file"), [("coco", "captions_val2014.json"), ("karpathy", "dataset_coco.json")]
)
def test_a_broken_json_file_is_named(name, file, content, write, problems):
    with pytest.raises(ValueError, match=file):
        read_dataset(name, write({file: content}), problems)


def test_a_validation_split_is_cut_by_lot_from_captioned_training_images():
    listing = [CaptionedImage(str(i), "train", ("a",) if i % 2 else ()) for i in range(40)]
    listing += [CaptionedImage("t", "test", ("a",))]
    cut, again, other = (cut_validation(listing, 8, seed) for seed in (0, 0, 1))
    chosen = [image for image in cut if image.split == "val"]
    assert len(chosen) == 8 and all(image.captions for image in chosen)
    assert cut == again and cut != other
    assert [image.image_id for image in cut] == [image.image_id for image in listing]
    assert cut[-1] == listing[-1]


def test_a_cut_needs_a_dataset_that_has_no_validation_split_and_enough_images():
    training = [CaptionedImage("a", "train", ("a",)), CaptionedImage("b", "train", ())]
    with pytest.raises(ValueError, match=r"has 1 training images with captions; got 1"):
        cut_validation(training, 1, 0)
    with pytest.raises(ValueError, match="`validation` is for a dataset without validation images"):
        cut_validation([*training, CaptionedImage("c", "val", ("a",))], 1, 0)

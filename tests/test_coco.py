import collections

import pytest

from mrnn_tf.data.listing import CaptionedImage
from mrnn_tf.data.readers import coco, read_dataset
from mrnn_tf.errors import UserError


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
def test_coco_trains_on_train_and_cuts_val(annotations, images_in, tmp_path, write, problems):
    files = {
        f"{annotations}captions_train2014.json": coco_file("train2014", [9, 25]),
        f"{annotations}captions_val2014.json": coco_file("val2014", range(100, 110)),
        f"{annotations}captions_val2014_fakecap_results.json": [],
        f"{images_in}train2014/a.jpg": "any",
    }
    images = read_dataset("coco", write(files), problems)
    assert images[0] == CaptionedImage(
        "9",
        "train",
        ("A 9", "The 9"),
        str(tmp_path / images_in / "train2014" / "COCO_train2014_000000000009.jpg"),
    )
    assert collections.Counter(image.split for image in images) == {"train": 2, "val": 8, "test": 2}
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


def test_coco_seed_reaches_the_cut(write, problems):
    source = write({"captions_val2017.json": coco_file("val2017", range(100))})
    listings = [read_dataset("coco", source, problems, seed) for seed in (0, 1, 0)]
    cuts = [[image.split for image in listing] for listing in listings]
    assert cuts[0] == cuts[2] != cuts[1]


def test_coco_quirks_are_reported(tmp_path, write, problems):
    content = coco_file("train2014", [1])
    content["images"] += [{"id": 2, "file_name": "2.jpg"}, {"id": 3}]
    content["annotations"] += [{"image_id": 77, "caption": "whose?"}, {"image_id": 1}]
    source = write({"captions_train2014.json": content})
    images = read_dataset("coco", source, problems)
    assert {image.image_id: list(image.captions) for image in images} == {
        "1": ["A 1", "The 1"],
        "2": [],
    }
    path = str(tmp_path / "captions_train2014.json")
    assert problems.names("captions of an unknown image") == [f"{path}: image 77"]
    assert problems.names("malformed entry") == [f"{path}: images[2]", f"{path}: annotations[3]"]
    assert problems.names("listed image without captions") == ["2"]


@pytest.mark.parametrize("annotations", [None, 7, {"image_id": 1, "caption": "A"}])
def test_coco_annotations_that_are_no_list_are_refused(annotations, write, problems):
    content = coco_file("train2014", [1]) | {"annotations": annotations}
    source = write({"captions_train2014.json": content})
    with pytest.raises(UserError, match=r"captions_train2014\.json.* a list too"):
        read_dataset("coco", source, problems)


def test_coco_image_list_alone_is_for_testing(tmp_path, write, problems):
    source = write({"annotations/image_info_test-dev2015.json": image_list("test2015", [1])})
    assert read_dataset("coco", source, problems) == [
        CaptionedImage(
            "1", "test", (), str(tmp_path / "test2015" / "COCO_test2015_000000000001.jpg")
        )
    ]
    assert len(problems) == 0


def test_coco_image_list_beside_captions_is_skipped_unless_it_is_the_source(
    tmp_path, write, problems
):
    path = tmp_path / "annotations" / "image_info_test2014.json"
    source = write(
        {
            "annotations/captions_train2014.json": coco_file("train2014", [1]),
            "annotations/image_info_test2014.json": image_list("test2014", [2]),
        }
    )
    [image] = read_dataset("coco", source, problems)
    assert (image.image_id, image.split) == ("1", "train")
    assert problems.names("image list skipped beside captions") == [str(path)]
    [image] = read_dataset("coco", str(path), problems)
    assert image.split == "test"
    assert image.path == str(tmp_path / "test2014" / "COCO_test2014_000000000002.jpg")


def test_coco_refuses_two_years_and_two_image_lists(write, problems):
    content = coco_file("any", [1])
    names = ["captions_train2017.json", "captions_val2014.json"]
    source = write({f"years/{name}": content for name in names})
    with pytest.raises(ValueError, match=", ".join(names)):
        read_dataset("coco", f"{source}/years", problems)
    names = ["image_info_test-dev2015.json", "image_info_test2015.json"]
    source = write({f"lists/{name}": content for name in names})
    with pytest.raises(ValueError, match=", ".join(names)):
        read_dataset("coco", f"{source}/lists", problems)

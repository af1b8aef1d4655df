import pytest

from mrnn_tf.data.listing import CaptionedImage
from mrnn_tf.data.readers import read_dataset


def karpathy_entry(name, split, *texts, **more):
    sentences = [{"raw": text, "tokens": text.lower().split(), "sentid": 0} for text in texts]
    return {"filename": name, "split": split, "imgid": 0, "sentences": sentences, **more}


def test_karpathy_coco(tmp_path, write, problems):
    entries = [
        karpathy_entry("t.jpg", "train", "T one.", "T two.", filepath="train2014", cocoid=1),
        karpathy_entry("r.jpg", "restval", "R", filepath="val2014", cocoid=2),
        karpathy_entry("v.jpg", "val", "V", filepath="val2014", cocoid=3),
        karpathy_entry("s.jpg", "test", filepath="val2014", cocoid=4),
        karpathy_entry("x.jpg", "unknown", "X", filepath="val2014"),
        {"filename": "m.jpg", "split": "train"},
        karpathy_entry("n.jpg", "train") | {"sentences": [{"raw": None}]},
        karpathy_entry("p.jpg", "train", "P", filepath=7),
        karpathy_entry("q.jpg", "train", "Q", filepath=["val2014"]),
    ]
    content = {"dataset": "coco", "images": entries}
    files = {"dataset_coco.json": content, "images/val2014/v.jpg": "any"}
    images = read_dataset("karpathy", write(files), problems)
    splits = {image.image_id: image.split for image in images}
    assert splits == {"t.jpg": "train", "r.jpg": "train", "v.jpg": "val", "s.jpg": "test"}
    assert images[0].captions == ("T one.", "T two.")
    assert images[0].path == str(tmp_path / "train2014" / "t.jpg")
    assert images[1].path == str(tmp_path / "images" / "val2014" / "r.jpg")
    assert problems.names("image in no split") == ["x.jpg"]
    assert problems.names("listed image without captions") == ["s.jpg"]
    path = str(tmp_path / "dataset_coco.json")
    assert problems.names("malformed entry") == [f"{path}: images[{n}]" for n in (5, 6, 7, 8)]


@pytest.mark.parametrize("folder", ["images", "Flicker8k_Dataset", "flickr30k-images", ""])
def test_karpathy_flickr_finds_the_image_folder(folder, tmp_path, write, problems):
    content = {"images": [karpathy_entry("a.jpg", "val", "A")]}
    files = {"dataset.json": content, f"{folder}/a.jpg": "any"}
    [image] = read_dataset("karpathy", write(files), problems)
    assert image == CaptionedImage("a.jpg", "val", ("A",), str(tmp_path / folder / "a.jpg"))


def test_karpathy_of_several_files_wants_one(write, problems):
    files = {
        f"dataset_{name}.json": {"images": [karpathy_entry(f"{name}.jpg", "test", "a")]}
        for name in ("coco", "flickr8k")
    }
    source = write(files)
    with pytest.raises(ValueError, match=r"dataset_coco\.json, dataset_flickr8k\.json"):
        read_dataset("karpathy", source, problems)
    [image] = read_dataset("karpathy", f"{source}/dataset_flickr8k.json", problems)
    assert (image.image_id, image.split) == ("flickr8k.jpg", "test")

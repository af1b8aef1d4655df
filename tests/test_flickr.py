import pytest

from mrnn_tf.data.listing import CaptionedImage
from mrnn_tf.data.readers import read_dataset

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


def splits(images):
    return {image.image_id: image.split for image in images}


def captions(images):
    return {image.image_id: list(image.captions) for image in images}


@pytest.mark.parametrize("text_folder", ["", "Flickr8k_text/"])
@pytest.mark.parametrize("image_folder", ["Flicker8k_Dataset", "Flickr8k_Dataset"])
def test_flickr8k_as_published(text_folder, image_folder, tmp_path, write, problems):
    texts = {"Flickr8k.token.txt": FLICKR8K_TOKENS} | FLICKR8K_LISTS
    files = {text_folder + name: content for name, content in texts.items()}
    source = write(files | {f"{image_folder}/1_a.jpg": "any"})
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


def test_flickr8k_with_short_names_and_without_a_test_list(tmp_path, write, problems):
    files = {
        "captions.token.txt": "\ufeff1_a.jpg#0\ta\r\n2_b.jpg#0\tb\r\n\r\n2_b.jpg#1\t\r\n",
        "train.txt": "1_a.jpg \r\n\r\n",
        "val.txt": "2_b.jpg\r\n",
    }
    images = read_dataset("flickr8k", write(files), problems)
    assert images == [
        CaptionedImage("1_a.jpg", "train", ("a",), str(tmp_path / "images" / "1_a.jpg")),
        CaptionedImage("2_b.jpg", "val", ("b",), str(tmp_path / "images" / "2_b.jpg")),
    ]
    assert problems.counts() == {"empty caption": 1}


def test_flickr_lines_that_are_malformed_or_not_utf8(tmp_path, write, problems):
    tokens = b"1.jpg#0\ta\n1.jpg#1 no tab\n1.jpg\tno number\n1.jpg#2\tcaf\xe9 \x93bar\x94\n"
    source = write({"captions.token.txt": tokens, "train.txt": "1.jpg"})
    images = read_dataset("flickr8k", source, problems)
    assert captions(images) == {"1.jpg": ["a", "caf\u00e9 \u201cbar\u201d"]}
    path = str(tmp_path / "captions.token.txt")
    assert problems.names("malformed line") == [f"{path}:2", f"{path}:3"]
    assert problems.names("line not in UTF-8") == [f"{path}:4"]


def test_an_image_in_two_flickr_lists_stays_in_the_first(write, problems):
    files = {"captions.token.txt": "1.jpg#0\ta", "val.txt": "1.jpg", "train.txt": "1.jpg\n1.jpg"}
    images = read_dataset("flickr8k", write(files), problems)
    assert splits(images) == {"1.jpg": "train"}
    assert problems.counts() == {"duplicate image id": 2}


def test_flickr30k_takes_lists_with_and_without_extension(tmp_path, write, problems):
    files = {
        "results_20130124.token": "10.jpg#0\ta\n20.jpg#0\tb\n30.jpg#0\tc\n",
        "train.txt": "10\n",
        "test.txt": "20.jpg\n",
        "flickr30k-images/10.jpg": "any",
    }
    images = read_dataset("flickr30k", write(files), problems)
    assert splits(images) == {"10.jpg": "train", "20.jpg": "test"}
    assert images[0].path == str(tmp_path / "flickr30k-images" / "10.jpg")
    assert problems.names("image in no split") == ["30.jpg"]


def test_flickr30k_without_lists_points_to_karpathy(write, problems):
    source = write({"results_20130124.token": "10.jpg#0\ta\n"})
    with pytest.raises(FileNotFoundError, match=r"no split list.*dataset_flickr30k\.json"):
        read_dataset("flickr30k", source, problems)

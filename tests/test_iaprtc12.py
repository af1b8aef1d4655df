import pytest

from mrnn_tf.data.readers import read_dataset
from mrnn_tf.errors import UserError


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
@pytest.mark.parametrize(
    "folders",
    [("", "iaprtc12"), ("iaprtc12/", "iaprtc12.20091111/iaprtc12"), ("iaprtc12/", "IAPRTC/iapr")],
)
def test_iaprtc12(description, sentences, folders, tmp_path, write, problems):
    root, lists = folders
    files = {
        f"{root}annotations_complete_eng/00/25.eng": annotation(description),
        f"{root}annotations_complete_eng/01/1000.eng": annotation("a boy;</DESCRIPTION>"),
        f"{root}annotations_complete_eng/01/1001.eng": annotation("unused;</DESCRIPTION>"),
        f"{root}annotations_complete_eng/02/2.eng": b"<DOC></DOC>",
        f"{lists}_train_list.txt": "00/25\r\n02/2\r\n40/7\r\n",
        f"{lists}_test_list.txt": "01/1000\n",
    }
    images = read_dataset("iaprtc12", write(files), problems)
    captions = {image.image_id: list(image.captions) for image in images}
    assert captions == {"00/25": sentences, "02/2": [], "40/7": [], "01/1000": ["a boy"]}
    assert [image.split for image in images] == ["train", "train", "train", "test"]
    assert images[0].path == str(tmp_path / root / "images" / "00" / "25.jpg")
    assert problems.names("listed image without captions") == ["02/2", "40/7"]
    assert problems.names("image in no split") == ["01/1001"]
    assert len(problems) == 3


def test_iaprtc12_without_a_list_names_it(write, problems):
    files = {
        "annotations_complete_eng/00/25.eng": annotation("a;</DESCRIPTION>"),
        "iaprtc12_train_list.txt": "00/25\n",
    }
    with pytest.raises(FileNotFoundError, match=r"iaprtc12_test_list\.txt"):
        read_dataset("iaprtc12", write(files), problems)


def test_iaprtc12_lists_are_texts(write, problems):
    files = {
        "annotations_complete_eng/00/25.eng": annotation("a;</DESCRIPTION>"),
        "iaprtc12_train_list.txt": b"00/25\xff\n",
        "iaprtc12_test_list.txt": "",
    }
    with pytest.raises(UserError, match=r"iaprtc12_train_list\.txt is not a text in UTF-8"):
        read_dataset("iaprtc12", write(files), problems)

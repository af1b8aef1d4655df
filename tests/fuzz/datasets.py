"""The readers of datasets, of features and of shards."""

import functools
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import tiny

from fuzz.engine import Case, Parser
from mrnn_tf import schema
from mrnn_tf.data import records
from mrnn_tf.data.features import FeatureTable
from mrnn_tf.data.listing import Problems
from mrnn_tf.data.readers import read_dataset

_LINES = [
    {"image": "a.jpg", "captions": ["a dog runs", "Ein Hund läuft"], "split": "train", "id": "a"},
    {"image": "b.jpg", "captions": ["two cats"], "split": "val", "id": 7},
    {"image": "c/d.jpg"},
]
_TOKENS = "a.jpg#0\tA dog runs .\na.jpg#1\tEin Hund läuft\nb.jpg#0\tTwo cats\nc.jpg#0\tA boat\n"
_IMAGES = [{"id": n, "file_name": f"{n}.jpg"} for n in (9, 12, 31)]
_ANNOTATIONS = [{"id": n, "image_id": i, "caption": "A dog."} for n, i in enumerate((9, 9, 12, 31))]
_COCO = {"info": {}, "images": _IMAGES, "annotations": _ANNOTATIONS}
_KARPATHY = {
    "dataset": "flickr8k",
    "images": [
        {"filename": f"{split}.jpg", "split": split, "filepath": "val2014", "imgid": 1,
         "sentences": [{"raw": "A dog runs.", "tokens": ["a", "dog", "runs"], "sentid": 1}]}
        for split in ("train", "val", "test", "restval")
    ],
}  # fmt: skip
_ENG = (
    "<DOC>\n<DOCNO>annotations/00/25.eng</DOCNO>\n<TITLE>Plaza de Armas</TITLE>\n<DESCRIPTION>a "
    "yellow building &quot;with&quot; columns; two palm trees in front; a caf\xe9;</DESCRIPTION>\n"
    "<NOTES></NOTES>\n<LOCATION>Cusco, Peru</LOCATION>\n</DOC>\n"
)
SOURCES = {
    "jsonl": {"captions.jsonl": "".join(json.dumps(line) + "\n" for line in _LINES)},
    "flickr8k": {
        "Flickr8k.token.txt": _TOKENS,
        "Flickr_8k.trainImages.txt": "a.jpg\n",
        "Flickr_8k.devImages.txt": "b.jpg\n",
        "Flickr_8k.testImages.txt": "c\n",
    },
    "coco": {
        "annotations/captions_train2014.json": json.dumps(_COCO),
        "annotations/captions_val2014.json": json.dumps(_COCO),
        "annotations/image_info_test2014.json": json.dumps({"images": _IMAGES}),
    },
    "karpathy": {"dataset_flickr8k.json": json.dumps(_KARPATHY)},
    "iaprtc12": {
        "annotations_complete_eng/00/25.eng": _ENG,
        "iaprtc12_train_list.txt": "00/25\n00/26\n",
        "iaprtc12_test_list.txt": "01/1000\n",
    },
}


class Folder:
    """Valid files in a folder, one of which at a time is replaced by a damaged one."""

    def __init__(self, path: Path, files: dict[str, bytes]):
        self.path, self._files = path, files
        for name, content in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
        self._replaced = next(iter(files))

    def place(self, case: Case) -> str:
        """Writes a damaged file, and the one before as it was; the path of the damaged file."""
        if self._replaced != case.name:
            (self.path / self._replaced).write_bytes(self._files[self._replaced])
        self._replaced = case.name
        (self.path / case.name).write_bytes(case.content)
        return str(self.path / case.name)


def _dataset(name: str, path: Path) -> Parser:
    files = {key: text.encode("cp1252" if key.endswith("eng") else "utf-8")
             for key, text in SOURCES[name].items()}  # fmt: skip
    folder = Folder(path, files)

    def parse(case: Case) -> None:
        folder.place(case)
        problems = Problems()
        images = read_dataset(name, str(path), problems)
        problems.sentences()
        for image in images:  # what prepare does with them
            json.dumps({"path": image.path, "split": image.split})
            records.serialize(image.image_id, image.captions)
            image.path.encode()

    return Parser(list(files.items()), parse)


def npy(array: np.ndarray, **options) -> bytes:
    content = io.BytesIO()
    np.save(content, array, **options)
    return content.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def zipped(**members: bytes) -> bytes:
    """An `.npz` whose members may be damaged, with the right checksums."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, member in members.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member)
    return content.getvalue()


def _features(path: Path) -> Parser:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    names = np.array(["a.jpg", "b.jpg", "c.jpg"])
    files = {
        "f.npy": npy(rows),
        "f.npz": npz(features=rows, names=names),
        "names.txt": b"a.jpg\nb.jpg\nc.jpg\n",
    }
    folder = Folder(path, files)
    wrapped = {"features": npy(rows), "names": npy(names)}

    def parse(case: Case) -> None:
        if case.name.startswith("inner/"):
            member = case.name.removeprefix("inner/").removesuffix(".npy")
            case = Case("f.npz", zipped(**wrapped | {member: case.content}))
        folder.place(case)
        is_archive = case.name == "f.npz"
        features, listed = ("f.npz", None) if is_archive else ("f.npy", str(path / "names.txt"))
        table = FeatureTable([str(path / features)], listed)
        table.check_finite()
        table.fingerprint()
        table.row("a.jpg")

    inner = {f"inner/{name}.npy": content for name, content in wrapped.items()}
    return Parser([*files.items(), *inner.items()], parse)


def _shards(path: Path) -> Parser:
    """The framing of TFRecord files, as `prepare` and `index` check it."""
    tiny.write(str(path), counts=(("train", 4),), shards=1)
    [shard] = records.shard_paths(str(path), schema.TRAIN, 1)
    folder = Folder(path, {Path(shard).name: Path(shard).read_bytes()})

    def parse(case: Case) -> None:
        folder.place(case)
        records.count_records(shard)

    return Parser([(Path(shard).name, Path(shard).read_bytes())], parse, share=0.1)


PARSERS = {f"dataset {name}": functools.partial(_dataset, name) for name in SOURCES}
PARSERS |= {"features": _features, "TFRecord framing": _shards}

"""Small files that describe something: datasets, runs, indexes, results, models to serve."""

import functools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tiny

from fuzz.datasets import Folder, npy
from fuzz.engine import Case, Parser
from mrnn_tf import checksums, run, schema
from mrnn_tf.config import ModelConfig, RunConfig, TrainConfig
from mrnn_tf.data import records
from mrnn_tf.errors import UserError
from mrnn_tf.metrics import coco, nbest
from mrnn_tf.retrieval.index import Header, Index, Texts
from mrnn_tf.text import Vocabulary
from serving import model_config

_WORDS = "".join(f"{word}\n" for word in (*schema.RESERVED_WORDS, "a", "dog", "läuft", "man's"))
_CONFIG = RunConfig(
    ModelConfig(), TrainConfig(), 50, 12, {"identity": tiny.IDENTITY, "feature_size": 12}, "f"
)
_REFERENCES = {
    "images": [{"id": 1}, {"id": "b"}],
    "annotations": [{"image_id": 1, "caption": "a dog"}, {"image_id": "b", "caption": "a cat"}],
}
_RESULTS = [{"image_id": 1, "caption": "a dog"}, {"image_id": "b", "caption": "a cat"}]
_N_BEST = [{"image_id": 1, "captions": ["a dog", "a cat"], "log_probs": [-7.1, -8]}]
_MODELS = """model_config_list {
  config { name: "mrnn" base_path: "mrnn" model_platform: "tensorflow"
    model_version_policy { specific { versions: 1 versions: 2 } }
    version_labels { key: "stable" value: 1 } }
  config { name: "mrnn_index" base_path: "/models/mrnn_index" model_platform: "tensorflow" }
}
"""


def _read(name: str, content: str | dict | list, read: Callable, path: Path) -> Parser:
    """A file by itself, which one function reads."""
    text = content if isinstance(content, str) else json.dumps(content)
    folder = Folder(path, {name: text.encode()})
    return Parser(
        [(name, text.encode())], lambda case: read(folder.place(case)), share=_SHARES.get(name, 1)
    )


def _read_vocabulary(path: str) -> None:
    vocabulary = Vocabulary.load(path)
    vocabulary.ids(["a dog"]).to_list()


def _read_config(path: str) -> None:
    config = run.load_config(str(Path(path).parent))
    assert config.vocabulary_size + config.feature_size > 0
    config.encoder["identity"].encode()
    config.difference(_CONFIG)


def _seal(path: Path, marker: str, whole: bytes, case: Case) -> None:
    """Gives three of four damaged files the right checksums: what they hold is read then."""
    if case.name != marker:
        (path / marker).write_bytes(whole)
    if len(case.content) % 4 == 0:
        return
    try:
        content = json.loads((path / marker).read_bytes())
        if isinstance(content, dict):
            if case.name != marker:
                content["checksums"][case.name] = checksums._of_file(str(path / case.name))
            content.pop("checksum", None)
            content["checksum"] = checksums._of_json(content)
            (path / marker).write_text(json.dumps(content))
    except (ValueError, RecursionError):
        return


def _dataset_info(path: Path) -> Parser:
    tiny.write(str(path), counts=(("train", 4), ("val", 2)), shards=2)
    content = (path / schema.DATASET_FILE).read_bytes()
    folder = Folder(path, {schema.DATASET_FILE: content})

    def parse(case: Case) -> None:
        folder.place(case)
        _seal(path, schema.DATASET_FILE, content, case)
        info = records.DatasetInfo.load(str(path))
        assert info.identity is None or isinstance(info.identity, str)
        assert sum(each.images + each.captions for each in info.splits.values()) >= 0
        for split in info.splits:
            info.shards(str(path), split)

    refuses = (UserError, FileNotFoundError)  # a file that the checksums name
    return Parser([(schema.DATASET_FILE, content)], parse, refuses)


def _index(path: Path) -> Parser:
    """The header and the arrays of an index."""
    generator = np.random.default_rng(0)

    def values(*shape, dtype=np.float32):
        return generator.normal(size=shape).astype(dtype)

    header = Header("m" * 64, "v" * 64, "e", 0, "train", 100, 2, 3, 4, 5, 6, "0.1.0")
    Index(
        ids=Texts.of([b"a.jpg", b"b.jpg"]), images=values(2, 5),
        captions=Texts.of([b"a dog", b"a cat", b"two boats"]),
        words=np.ones((3, 4), np.int32), vectors=values(3, 5, dtype=np.float16),
        mean_log_probs=values(3), log_marginals=values(3, dtype=np.float64),
        owners=np.array([0, 1, -1], np.int32), mean=values(5), sample=values(6, 5), header=header,
    ).save(str(path))  # fmt: skip
    files = {file.name: file.read_bytes() for file in sorted(path.iterdir())}
    assert files["words.npy"] == npy(np.ones((3, 4), np.int32))
    folder = Folder(path, files)

    def parse(case: Case) -> None:
        folder.place(case)
        _seal(path, "header.json", files["header.json"], case)
        index = Index.load(str(path), header.model)
        assert len(list(index.ids)) == index.header.images == len(index.images)
        assert len(list(index.captions)) == index.header.sentences
        for array in index.arrays().values():
            array.sum()

    seeds = list(files.items())
    seeds += [("header.json", files["header.json"])] * len(seeds)
    return Parser(seeds, parse, refuses=(UserError, FileNotFoundError), share=0.5)


_FILES = {
    "vocabulary.txt": (_WORDS, _read_vocabulary),
    "config.json": (_CONFIG.to_dict(), _read_config),
    "references.json": (_REFERENCES, coco.read_references),
    "results.json": (_RESULTS, coco.read_results),
    "nbest.json": (_N_BEST, nbest.read_n_best),
    "models.config": (_MODELS, model_config.read),
}
_SHARES = {"vocabulary.txt": 0.5}
PARSERS = {
    name: functools.partial(_read, name, content, read) for name, (content, read) in _FILES.items()
}
PARSERS |= {"dataset.json": _dataset_info, "index": _index}

"""Imports go one way: schema, config -> text, vision, metrics -> data, model -> ... -> trainer."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = [
    {"mrnn_tf.schema", "mrnn_tf.errors", "mrnn_tf.extras", "mrnn_tf.escape", "mrnn_tf.memory"},
    {"mrnn_tf.config", "mrnn_tf.arrays", "mrnn_tf.fingerprints", "mrnn_tf.progress"},
    {"mrnn_tf.presets", "mrnn_tf.program", "mrnn_tf.files", "mrnn_tf.photos"},
    {"mrnn_tf.checksums", "mrnn_tf.batch"},
    {"mrnn_tf.versions"},
    {"mrnn_tf.text", "mrnn_tf.vision", "mrnn_tf.rows"},
    {"mrnn_tf.metrics"},
    {"mrnn_tf.data", "mrnn_tf.model"},
    {"mrnn_tf.decode", "mrnn_tf.retrieval", "mrnn_tf.consensus"},
    {"mrnn_tf.run"},
    {"mrnn_tf.split", "mrnn_tf.model_info", "mrnn_tf.verification"},
    {"mrnn_tf.inference"},
    {"mrnn_tf.pretrained"},
    {"mrnn_tf.captioner"},
    {"mrnn_tf.photo_index", "mrnn_tf.caption_files"},
    {"mrnn_tf"},
    {"export"},
    {"trainer", "serving"},
]
TOPS = ("mrnn_tf", "export", "trainer", "serving")
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
FILES = [p for top in TOPS for p in sorted((ROOT / top).rglob("*.py"))]


def unit(module: str) -> str | None:
    """The layer's member that a module belongs to."""
    parts = module.split(".")
    if parts[0] not in TOPS:
        return None
    return ".".join(parts[:2]) if parts[0] == "mrnn_tf" else parts[0]


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def known(name: str) -> str | None:
    member = unit(name)
    return member if member is None or member in RANK else unit(name.rsplit(".", 1)[0])


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_from_its_own_layer_and_below(path):
    own = unit(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    assert own in RANK, f"{own} has no place in LAYERS"
    for name in imported(path):
        member = known(name)
        if member not in (None, own):
            assert RANK[member] < RANK[own], f"{path.name} imports {name}"


def test_the_schema_imports_nothing():
    assert imported(ROOT / "mrnn_tf" / "schema.py") == set()


def test_nothing_is_unpickled():
    loaders = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "torch"}
    for path in FILES:
        tops = {name.partition(".")[0] for name in imported(path)}
        assert not tops & loaders, f"{path} imports {tops & loaders}"
        assert "allow_pickle=True" not in path.read_text()

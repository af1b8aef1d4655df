"""The examples in docstrings run, with a model, an index and a photograph at hand."""

import doctest
import importlib
import pkgutil

import numpy as np
import pytest
import tiny

import mrnn_tf

MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(mrnn_tf.__path__, "mrnn_tf.")
    if not name.endswith("__main__")
]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture(scope="module")
def names(searchable_models, tmp_path_factory):
    photo = tmp_path_factory.mktemp("doctests") / "photo.png"
    photo.write_bytes(tiny.picture(0))
    model = searchable_models / "mrnn" / "1"
    return {
        "mrnn_tf": mrnn_tf,
        "np": np,
        "model": model,
        "index_version": searchable_models / "mrnn_index" / "1",
        "photo": photo,
        "tmp_path": tmp_path_factory.mktemp("index"),
        "captioner": mrnn_tf.Captioner.load(model),
    }


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module(name, names):
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    for example in finder.find(module, globs={**names, **vars(module)}):
        assert doctest.DocTestRunner(optionflags=FLAGS).run(example).failed == 0, example.name


def test_the_door_has_examples():
    finder = doctest.DocTestFinder()
    for name in ("Captioner", "PhotoIndex", "MRNN", "Vocabulary"):
        assert any(example.examples for example in finder.find(getattr(mrnn_tf, name))), name

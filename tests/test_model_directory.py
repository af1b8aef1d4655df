"""Versions that come, break, change and go."""

import asyncio
import logging

import numpy as np
import pytest
import served
import tensorflow as tf
from tensorflow_serving.apis import get_model_status_pb2, model_pb2

from serving.model_directory import ModelDirectory
from serving.served_version import Refused

STATE = get_model_status_pb2.ModelVersionStatus.State


def spec(name="toy", version=None, **fields):
    made = model_pb2.ModelSpec(name=name, **fields)
    if version is not None:
        made.version.value = version
    return made


def states(models, name="toy"):
    listed = models.status(spec(name)).model_version_status
    return {each.version: STATE.Name(each.state) for each in listed}


@pytest.fixture
def base(tmp_path):
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


@pytest.fixture
def announced():
    return []


@pytest.fixture
def models(base, announced):
    return ModelDirectory(lambda each: announced.append((each.name, each.version)), str(base))


def poll(models, times=1):
    async def main():
        for _ in range(times):
            await models.poll()

    asyncio.run(main())


def test_the_newest_of_every_model_is_loaded(base, models, announced):
    for name, version in (("toy", 2), ("toy", 10), ("other", 1)):
        served.write(base, version, name)
    served.write(base, 11).rename(base / "toy" / "11.partial")
    for name in ("012", "x", "-1", "1.0"):
        (base / "toy" / name).mkdir()
    (base / "toy" / "13").mkdir()  # nothing in it yet
    (base / "a file").write_text("")
    (base / "an empty folder").mkdir()
    assert not models.ready
    poll(models, times=2)
    assert models.ready
    assert announced == [("other", 1), ("toy", 10)]
    assert models.find(spec()).version == 10
    assert models.find(spec(version=10)).version == 10
    assert states(models) == {10: "AVAILABLE"}


def test_what_is_not_there_is_named(base, models):
    served.write(base, 3)
    poll(models)
    with pytest.raises(Refused, match=r"Servable not found for request: Latest\(none\)"):
        models.find(spec("none"))
    with pytest.raises(Refused, match=r"Specific\(toy, 2\)"):
        models.find(spec(version=2))
    with pytest.raises(Refused, match="label: stable"):
        models.find(spec(version_label="stable"))
    with pytest.raises(Refused, match="any versions of model none"):
        models.status(spec("none"))
    with pytest.raises(Refused, match="version 2 of model toy"):
        models.status(spec(version=2))
    with pytest.raises(Refused, match='"x" not found; `toy` has count, double'):
        models.find(spec()).signature("x")


def test_a_newer_version_replaces_the_older_which_ends_after_its_requests(base, models):
    served.write(base, 1)

    async def main():
        await models.poll()
        old = models.find(spec())
        served.write(base, 2)
        await models.poll()
        assert models.find(spec()).version == 2
        assert states(models) == {2: "AVAILABLE", 1: "UNLOADING"}
        y = old.signature("")({"x": np.zeros((1, 4), np.float32)})["y"]
        assert y.tolist() == [[1] * 4]
        with pytest.raises(Refused, match=r"Specific\(toy, 1\)"):
            models.find(spec(version=1))
        del old
        await models.poll()
        assert states(models) == {2: "AVAILABLE", 1: "END"}

    asyncio.run(main())


def test_a_broken_version_is_reported_and_tried_again_only_when_it_changes(
    base, models, announced, caplog
):
    served.write(base, 1)
    poll(models)
    broken = served.write_broken(base, 2)
    with caplog.at_level(logging.ERROR):
        poll(models, times=3)
    [message] = caplog.messages
    assert "toy version 2 cannot be loaded: " in message
    assert models.find(spec()).version == 1
    assert states(models) == {2: "END", 1: "AVAILABLE"}
    [status] = models.status(spec(version=2)).model_version_status
    assert status.status.error_code != 0
    assert status.status.error_message

    whole = served.write(base, 3).rename(base / "toy" / "3.partial")
    for path in (whole / "variables").iterdir():
        path.rename(broken / "variables" / path.name)
    poll(models)
    assert announced == [("toy", 1), ("toy", 2)]
    assert states(models) == {2: "AVAILABLE", 1: "END"}


def test_garbage_in_place_of_a_graph(base, models):
    served.write(base, 1)
    (served.write(base, 2) / "saved_model.pb").write_bytes(b"\xff garbage")
    (served.write(base, 3) / "saved_model.pb").write_bytes(b"")
    poll(models)
    assert states(models) == {3: "END", 2: "END", 1: "AVAILABLE"}
    assert models.ready


def test_the_newest_whole_version_is_rolled_back_to(base, models):
    served.write(base, 1)
    new = served.write(base, 2)
    poll(models)
    new.rename(base / "toy" / "2.bad")
    poll(models)
    assert states(models) == {2: "END", 1: "AVAILABLE"}


def test_what_vanishes_stays_loaded(base, models):
    served.write(base, 1)
    poll(models)
    (base / "toy").rename(base.parent / "elsewhere")
    poll(models)
    assert models.find(spec()).version == 1
    base.rename(base.parent / "gone")
    poll(models, times=2)
    assert models.find(spec()).version == 1


def test_warm_up_records_are_replayed(base, models):
    path = served.write(base, 1, warm_up=False)
    x = {"x": np.zeros((1, 4), np.float32)}
    greeting = {"text": ["dog"], "scale": [[1.0, 2.0]]}
    served.write_warm_up(
        path,
        [served.predict_request("double", x)] * 2 + [served.predict_request("greet", greeting)],
    )
    poll(models)
    calls = models.find(spec()).signature("count")({"x": np.zeros(1, np.int32)})["calls"]
    assert calls.tolist() == [2]


def test_a_version_that_fails_its_warm_up_is_broken(base, models):
    path = served.write(base, 1)
    served.write_warm_up(path, [served.predict_request("double", {"x": [[1.0]]})])
    marked = served.predict_request("double", {"x": [[served.MARK] * 4]})
    served.write_warm_up(served.write(base, 2), [marked])
    poll(models)
    assert not models.ready
    errors = [each.status for each in models.status(spec()).model_version_status]
    assert "marked value" in errors[0].error_message
    assert "must have the shape [?, 4]" in errors[1].error_message
    assert [each.error_code for each in errors] == [3, 3]


def test_a_model_may_come_later(base, models):
    poll(models)
    assert not models.ready
    served.write(base, 1, "late")
    poll(models)
    assert models.ready
    assert states(models, "late") == {1: "AVAILABLE"}


def test_a_remote_directory(tmp_path):
    base = f"ram://{tmp_path.name}/models"
    local = served.write(tmp_path, 1)
    for folder, _, names in tf.io.gfile.walk(str(local)):
        remote = folder.replace(str(local), f"{base}/toy/1")
        tf.io.gfile.makedirs(remote)
        for name in names:
            tf.io.gfile.copy(f"{folder}/{name}", f"{remote}/{name}")
    models = ModelDirectory(print, base)
    poll(models)
    assert states(models) == {1: "AVAILABLE"}


def test_a_wrong_directory_is_one_sentence(base):
    with pytest.raises(FileNotFoundError, match=r"`model_base_path`: there is no directory .*none"):
        ModelDirectory(print, str(base / "none"))
    served.write(base, 1)
    with pytest.raises(ValueError, match="holds versions of one model; give the directory above"):
        ModelDirectory(print, str(base / "toy"))

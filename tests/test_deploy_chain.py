"""From an empty volume to an answer: what one stage writes is what the next one reads."""

import os
import re
import shutil
import sys
import time

import programs
import pytest
import served
import tensorflow as tf
from deployments import applied, containers, flags, manifest, pod, rendered
from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from mrnn_tf import schema

STAGES = ["prepare", "train", "index", "serving"]
WAITS = {"train": 1, "index": 1, "serving": 2}  # markers
VERSION = "*[0-9]"  # not <number>.partial


class Deployment:
    """What is applied to a cluster: its stages, with the variables of their ConfigMap put in."""

    def __init__(self, documents):
        self.documents = documents
        self.variables = manifest("ConfigMap", "mrnn-run", documents)["data"]
        config = manifest("ConfigMap", "mrnn-serving", documents)["data"]["models.config"]
        self.config = text_format.Parse(config, model_server_config_pb2.ModelServerConfig())

    def stage(self, name):
        kind = "Deployment" if name == "serving" else "Job"
        return manifest(kind, f"mrnn-{name}", self.documents)

    def container(self, name, container):
        """A container of a stage, which must take its variables from the ConfigMap."""
        [found] = [c for c in containers(self.stage(name)) if c["name"] == container]
        if container != "serving":
            [source] = found["envFrom"]
            assert source["configMapRef"]["name"].startswith("mrnn-run")
        return found

    def arguments(self, name, container):
        """Its arguments as the kubelet passes them."""

        def value(match):
            return self.variables[match[1]]

        return [re.sub(r"\$\((\w+)\)", value, a) for a in self.container(name, container)["args"]]

    def flags(self, name):
        return flags(self.arguments(name, name))

    def place(self, name, container, path, write=False):
        """Where a path of a container lies: a bucket, or a claim and the path in it."""
        if path.startswith("gs://"):
            return path
        mounts = self.container(name, container)["volumeMounts"]
        [mount] = [m for m in mounts if path.startswith(m["mountPath"] + "/")]
        [volume] = [v for v in pod(self.stage(name))["volumes"] if v["name"] == mount["name"]]
        assert "subPath" not in mount
        if write:
            assert not mount.get("readOnly")
            assert not volume["persistentVolumeClaim"].get("readOnly")
        return volume["persistentVolumeClaim"]["claimName"], path[len(mount["mountPath"]) :]


@pytest.fixture(params=["volumes", "buckets"])
def deployment(request, tmp_path):
    if request.param == "volumes":
        return Deployment(applied())
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed")
    return Deployment(rendered(tmp_path, ["k8s/gcs"]))


def test_what_a_stage_writes_the_next_one_reads(deployment):
    """Walks the chain: flags, mounts and the markers that are waited for."""
    prepared, trained = deployment.flags("prepare"), deployment.flags("train")
    indexed = deployment.flags("index")
    assert "export" in trained
    served = {each.name: each.base_path for each in deployment.config.model_config_list.config}

    def written(stage, path):
        return deployment.place(stage, stage, path, write=True)

    def read(stage, path):
        return deployment.place(stage, stage, path)

    data = written("prepare", prepared["output"])
    model = written("train", trained["model_dir"])
    index = written("index", indexed["output"])
    written("train", trained["job_dir"])
    assert read("train", trained["data"]) == read("index", indexed["data"]) == data
    assert read("index", indexed["model"]) == model
    assert read("serving", served[schema.MODEL]) == model
    assert read("serving", served[schema.INDEX]) == index

    markers = {
        "train": [f"{prepared['output']}/{schema.DATASET_FILE}"],
        "index": [f"{trained['model_dir']}/{VERSION}/{schema.SAVED_MODEL_FILE}"],
    }
    markers["serving"] = [
        *markers["index"], f"{indexed['output']}/{VERSION}/{schema.SAVED_MODEL_FILE}",
    ]  # fmt: skip
    for stage, paths in markers.items():
        assert deployment.arguments(stage, "wait") == paths
        for path in paths:
            writer = "prepare" if stage == "train" else "index" if "index" in path else "train"
            assert deployment.place(stage, "wait", path) == read(writer, path)


def test_buckets_need_credentials_and_a_way_out(tmp_path):
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed")
    documents = rendered(tmp_path, ["k8s/gcs"])
    account = manifest("ServiceAccount", among=documents)["metadata"]
    assert "iam.gke.io/gcp-service-account" in account["annotations"]
    deployment = Deployment(documents)
    for name in STAGES:
        assert pod(deployment.stage(name))["serviceAccountName"] == account["name"]
        volumes = pod(deployment.stage(name))["volumes"]
        assert not any("persistentVolumeClaim" in volume for volume in volumes)
    assert "PersistentVolumeClaim" not in {document["kind"] for document in documents}
    egress = manifest("NetworkPolicy", among=documents)["spec"]["egress"]
    assert {port["port"] for rule in egress for port in rule["ports"]} == {53, 443, 988, 80}
    volumes = Deployment(applied()).config
    for ours, theirs in zip(
        deployment.config.model_config_list.config, volumes.model_config_list.config, strict=True
    ):
        ours.base_path = ours.base_path.removeprefix("gs://BUCKET")
        assert ours == theirs


def test_a_stage_begins_when_the_one_before_is_whole(tmp_path, monkeypatch):
    """Runs the program that waits; with every sleep, one more file appears."""
    deployment = Deployment(applied())
    programs = [deployment.container(name, "wait")["command"] for name in WAITS]
    assert all(each == programs[0] for each in programs)
    python, option, text = programs[0]
    assert (python, option) == ("python", "-c")
    for name, count in WAITS.items():
        patterns = [str(tmp_path / name) + a for a in deployment.arguments(name, "wait")]
        appear = [p.replace(VERSION, v) for p in patterns for v in ("12.partial", "12")]
        appear = list(dict.fromkeys(appear))
        slept, files = [], iter(appear)

        def sleep(seconds, files=files, slept=slept):
            slept.append(seconds)
            path = next(files)
            tf.io.gfile.makedirs(os.path.dirname(path))
            with tf.io.gfile.GFile(path, "w") as file:
                file.write("whole")

        monkeypatch.setattr(time, "sleep", sleep)
        monkeypatch.setattr(sys, "argv", ["-c", *patterns])
        exec(compile(text, "wait", "exec"), {})
        assert len(patterns) == count and len(slept) == len(appear)


@pytest.mark.slow
def test_the_commands_of_the_manifests_end_in_an_answer(tmp_path):
    """Runs every stage's own command on folders that are empty, on one worker without a GPU."""
    deployment = Deployment(applied())
    deployment.variables = {
        **deployment.variables, "WORK": str(tmp_path), "MODELS": f"{tmp_path}/models",
    }  # fmt: skip
    modules = {"prepare": "trainer.prepare", "train": "trainer.task", "index": "export.index"}
    short = {"train": ["--epochs=1"], "index": ["--sample=50"], "prepare": []}
    for stage, module in modules.items():
        command = deployment.container(stage, stage)["command"]
        assert module in command or f'"{module}"' in command[-1]
        arguments = [a for a in deployment.arguments(stage, stage) if a != "--require_gpu"]
        done = programs.run(tmp_path, module, *arguments, *short[stage])
        assert done.code == 0, done.err
    for pattern in deployment.arguments("serving", "wait"):
        assert tf.io.gfile.glob(pattern)
    with served.serving(tmp_path, tmp_path / "models") as server:
        query = {"sentences": ["a red car on the street"]}
        answer = server.predict("search_images", query, name=schema.INDEX)
        assert answer["ids"][0, 0]
        [photo, *_] = (tmp_path / "source" / deployment.variables["DATASET"]).rglob("*.jpg")
        answer = server.predict("caption", {"image_bytes": [photo.read_bytes()]}, name=schema.MODEL)
        assert answer["captions"][0, 0]

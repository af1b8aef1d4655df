"""The files for Vertex AI against the API's own description, which comes with its Python client."""

import dataclasses
import json
from pathlib import Path

import googleapiclient
import pytest
from deployments import DEPLOY, argument, commands, documents, flags, option_fields

from mrnn_tf import schema
from mrnn_tf.presets import PRESETS

VERTEX = json.loads(
    (
        Path(googleapiclient.__file__).parent / "discovery_cache/documents/aiplatform.v1.json"
    ).read_text()
)["schemas"]
PREFIX = "GoogleCloudAiplatformV1"


def check(value, wanted: dict, where: str = "") -> None:
    """Compares a value with the API's own description: names, types, enumerations."""
    if "$ref" in wanted:
        wanted = VERTEX[wanted["$ref"]]
    kind = wanted["type"]
    if kind == "object":
        assert isinstance(value, dict), where
        unknown = value.keys() - wanted["properties"].keys()
        assert not unknown, f"{where}: {unknown}"
        for name, each in value.items():
            check(each, wanted["properties"][name], f"{where}.{name}")
    elif kind == "array":
        assert isinstance(value, list), where
        for each in value:
            check(each, wanted["items"], f"{where}[]")
    elif kind == "string" and wanted.get("format") == "int64":
        assert isinstance(value, int), where
    else:
        types = {"string": str, "integer": int, "boolean": bool, "number": (int, float)}
        assert isinstance(value, types[kind]), where
        assert value in wanted.get("enum", [value]), f"{where}: {value}"


FILES = {
    "custom_job.yaml": "CustomJobSpec",
    "tuning_job.yaml": "HyperparameterTuningJob",
    "model.json": "UploadModelRequest",
    "endpoint.json": "Endpoint",
}


def read(file: str) -> dict:
    [document] = documents(f"vertex/{file}")  # JSON is YAML
    return document


@pytest.mark.parametrize("file", FILES)
def test_vertex_knows_every_field(file):
    check(read(file), VERTEX[PREFIX + FILES[file]])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["baseOutputDir"], {}),
        (["workerPoolSpecs", 0, "machineSpec", "acceleratorType"], "NVIDIA_L5"),
        (["scheduling", "restartJobOnWorkerRestart"], "yes"),
    ],
    ids=lambda value: str(value),
)
def test_vertex_refuses_what_is_wrong(path, value):
    place = document = read("custom_job.yaml")
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(AssertionError):
        check(document, VERTEX[PREFIX + "CustomJobSpec"])


def test_the_custom_job_is_one_run_and_exports():
    job = read("custom_job.yaml")
    pools = job["workerPoolSpecs"]
    assert pools[0]["replicaCount"] == 1  # the chief
    for pool in pools:
        container = pool["containerSpec"]
        assert container["command"] == json.loads(argument("train.Dockerfile", "ENTRYPOINT"))
        given = flags(container["args"])
        assert given.keys() <= option_fields("trainer.task").keys() and "export" in given
        assert given["job_dir"] == job["baseOutputDirectory"]["outputUriPrefix"]
    assert job["scheduling"]["restartJobOnWorkerRestart"] is True


def test_the_model_that_is_uploaded_is_the_one_that_was_trained():
    """AIP_MODEL_DIR is `model/` of the output, with versions in it: a base path of TF Serving."""
    model, output = read("model.json")["model"], read("custom_job.yaml")["baseOutputDirectory"]
    assert model["artifactUri"] == f"{output['outputUriPrefix']}/{schema.MODEL_DIR}"
    container = model["containerSpec"]
    server = flags(container["args"])
    assert server["rest_api_port"] == "$(AIP_HTTP_PORT)"
    assert server["model_base_path"] == "$(AIP_STORAGE_URI)"
    assert container["ports"] == [{"containerPort": 8501}]
    assert container["predictRoute"] == f"/v1/models/{server['model_name']}:predict"
    assert container["healthRoute"] == f"/v1/models/{server['model_name']}"
    start = container["startupProbe"]["httpGet"]
    assert start == {"path": container["healthRoute"], "port": 8501}


def test_trials_tune_flags_that_exist_within_their_limits():
    job = read("tuning_job.yaml")
    fields, trial = option_fields("trainer.task"), job["trialJobSpec"]
    [pool] = trial["workerPoolSpecs"]
    given = flags(pool["containerSpec"]["args"])
    assert given.keys() <= fields.keys()
    assert given["job_dir"] == trial["baseOutputDirectory"]["outputUriPrefix"]
    model, training = PRESETS[given["preset"]]()
    for parameter in job["studySpec"]["parameters"]:
        name = parameter["parameterId"]
        assert name not in given
        [kind] = [key for key in parameter if key.endswith("ValueSpec")]
        spec = parameter[kind]
        for value in spec.get("values") or [spec["minValue"], spec["maxValue"]]:
            part = model if hasattr(model, name) else training
            dataclasses.replace(part, **{name: value})  # refuses what it does not take
    [metric] = job["studySpec"]["metrics"]
    assert (metric["metricId"], metric["goal"]) == ("perplexity", "MINIMIZE")


def test_jobs_have_a_tensorboard_and_an_account():
    for job in (read("custom_job.yaml"), read("tuning_job.yaml")["trialJobSpec"]):
        assert job["tensorboard"].startswith("projects/PROJECT/locations/REGION/tensorboards/")
        assert job["serviceAccount"].endswith("@PROJECT.iam.gserviceaccount.com")


def test_the_endpoint_is_dedicated():
    assert read("endpoint.json")["dedicatedEndpointEnabled"] is True


def test_the_commands_send_these_files():
    sent = [
        word.removeprefix("@")
        for command in commands(DEPLOY / "README.md", "curl")
        for word in command
        if word.startswith("@")
    ]
    config = [
        flags(command[4:])["config"]
        for kind in ("custom-jobs", "hp-tuning-jobs")
        for command in commands(DEPLOY / "README.md", f"gcloud ai {kind} create")
    ]
    assert {*sent, *config} >= {f"serving/deploy/vertex/{file}" for file in FILES}

"""The files for Vertex AI against the API's own description, which comes with its Python client."""

import json
from pathlib import Path

import googleapiclient
import pytest
from deployments import argument, documents, flags, readme_commands

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
        types = {"string": str, "integer": int, "boolean": bool}
        assert isinstance(value, types[kind]), where
        assert value in wanted.get("enum", [value]), f"{where}: {value}"


@pytest.mark.parametrize(
    ("file", "message"),
    [("custom_job.yaml", "CustomJobSpec"), ("model.yaml", "UploadModelRequest")],
)
def test_vertex_knows_every_field(file, message):
    [document] = documents(f"vertex/{file}")
    check(document, VERTEX[PREFIX + message])


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
    [document] = documents("vertex/custom_job.yaml")
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(AssertionError):
        check(document, VERTEX[PREFIX + "CustomJobSpec"])


def test_the_custom_job_is_one_run():
    [job] = documents("vertex/custom_job.yaml")
    pools = job["workerPoolSpecs"]
    assert pools[0]["replicaCount"] == 1  # the chief
    for pool in pools:
        container = pool["containerSpec"]
        assert container["command"] == json.loads(argument("train.Dockerfile", "ENTRYPOINT"))
        given = flags(container["args"])
        assert given["job_dir"] == job["baseOutputDirectory"]["outputUriPrefix"]
    assert job["scheduling"]["restartJobOnWorkerRestart"] is True


def test_the_model_and_the_command_that_uploads_it_agree():
    model = documents("vertex/model.yaml")[0]["model"]
    container = model["containerSpec"]
    [command] = readme_commands("gcloud ai models upload")
    given = flags(command[4:])
    assert given.pop("region") == "REGION"
    assert given == {
        "display-name": model["displayName"],
        "artifact-uri": model["artifactUri"],
        "container-image-uri": container["imageUri"],
        "container-command": ",".join(container["command"]),
        "container-args": ",".join(container["args"]),
        "container-ports": ",".join(str(port["containerPort"]) for port in container["ports"]),
        "container-predict-route": container["predictRoute"],
        "container-health-route": container["healthRoute"],
    }
    server = flags(container["args"])
    assert server["rest_api_port"] == "$(AIP_HTTP_PORT)"
    assert server["model_base_path"] == "$(AIP_STORAGE_URI)"
    assert container["ports"] == [{"containerPort": 8501}]
    assert container["predictRoute"] == f"/v1/models/{server['model_name']}:predict"
    assert container["healthRoute"] == f"/v1/models/{server['model_name']}"

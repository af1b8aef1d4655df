"""What can be known of the manifests without a cluster."""

import json
import os
import re
import shutil
import subprocess
import sys

import kubernetes_validate
import pytest
from deployments import (
    DEPLOY,
    ROOT,
    TF_SERVING_FLAGS,
    applied,
    argument,
    containers,
    documents,
    flags,
    kustomization,
    manifest,
    option_fields,
    pod,
    rendered,
)

from mrnn_tf import schema
from serving.local import LocalOptions

MANIFESTS = [d for d in documents("k8s/*.yaml") if d["kind"] != "InferenceService"]
WITH_PODS = [document for document in MANIFESTS if document["kind"] in ("Deployment", "Job")]
GRPC, REST = 8500, 8501
SERVER = pod(manifest("Deployment"))["containers"][0]
TRAIN = manifest("Job", "mrnn-train")
WORKER = pod(TRAIN)["containers"][0]


def title(document: dict) -> str:
    return f"{document['kind']} {document['metadata']['name']}"


# Kubernetes


@pytest.mark.parametrize("version", ["1.33", "1.37"])
@pytest.mark.parametrize("document", MANIFESTS, ids=title)
def test_manifests_follow_the_schemas(document, version):
    kubernetes_validate.validate(document, version, strict=True)


def test_the_schemas_refuse_what_is_wrong():
    wrong = manifest("Deployment")
    wrong["spec"]["replicaz"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.33", strict=True)


def test_what_kustomize_makes_follows_the_schemas(tmp_path):
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed")
    for components in ([], ["k8s/gcs"]):
        made = rendered(tmp_path / str(len(components)), components)
        assert len(made) >= len(MANIFESTS)
        for document in made:
            kubernetes_validate.validate(document, "1.33", strict=True)


@pytest.mark.parametrize("document", WITH_PODS, ids=title)
def test_pods_may_do_little(document):
    user = pod(document)["securityContext"]
    assert user["runAsNonRoot"] and user["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod(document)["automountServiceAccountToken"] is False
    assert str(user["runAsUser"]) == argument("train.Dockerfile", "USER")
    for container in containers(document):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]
        assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in pod(document)["volumes"]}
    mounted = {mount["name"] for each in containers(document) for mount in each["volumeMounts"]}
    assert mounted == volumes


@pytest.mark.parametrize("document", WITH_PODS, ids=title)
def test_thread_pools_are_as_large_as_the_limit(document):
    """TensorFlow counts the processors of the node."""
    [container] = pod(document)["containers"]
    limit = container["resources"]["limits"].get("cpu")
    if document["kind"] == "Deployment":
        given = flags(container["args"])
        threads = {given[f"tensorflow_{kind}_op_parallelism"] for kind in ("intra", "inter")}
        assert given["rest_api_num_threads"] == str(4 * int(limit))
        # They wait for the batches that are allowed to queue; gRPC refuses a call without a thread.
        config = (DEPLOY / "tf_serving" / "batching.config").read_text()
        [queued] = re.findall(r"max_enqueued_batches { value: (\d+) }", config)
        assert int(given["grpc_max_threads"]) > 4 * int(queued)
    else:
        variables = {each["name"]: each["value"] for each in container["env"]}
        names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
        threads = {variables.get(name) for name in names}
    assert threads == {limit}  # without a limit: what TensorFlow finds


def test_what_is_referred_to_exists():
    names = kustomization()["resources"]
    assert all((DEPLOY / name).is_file() for name in names)
    generated = {each["name"]: each for each in kustomization()["configMapGenerator"]}
    assert all((DEPLOY / name).is_file() for name in generated["mrnn-serving"]["files"])
    everything = applied()
    claims = {d["metadata"]["name"] for d in everything if d["kind"] == "PersistentVolumeClaim"}
    for document in WITH_PODS:
        assert document in everything
        for volume in pod(document)["volumes"]:
            if claim := volume.get("persistentVolumeClaim"):
                assert claim["claimName"] in claims
            if config := volume.get("configMap"):
                assert config["name"] in generated
    used = {each["image"].split(":")[0] for d in WITH_PODS for each in containers(d)}
    assert {each["name"] for each in kustomization()["images"]} == used - {"tensorflow/serving"}

    labels = manifest("Deployment")["spec"]["template"]["metadata"]["labels"]
    name = manifest("Deployment")["metadata"]["name"]
    assert manifest("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["name"] == name
    selectors = [
        manifest("Deployment")["spec"]["selector"]["matchLabels"],
        manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        manifest("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        *(
            service["spec"]["selector"]
            for service in documents("k8s/serving.yaml")
            if service["kind"] == "Service"
        ),
    ]
    assert len(selectors) == 5
    assert all(selector.items() <= labels.items() for selector in selectors)


def test_ports_agree_everywhere():
    assert flags(SERVER["args"]).items() >= {("port", str(GRPC)), ("rest_api_port", str(REST))}
    ports = {port["name"]: port["containerPort"] for port in SERVER["ports"]}
    assert ports == {"grpc": GRPC, "rest": REST}
    for service in documents("k8s/serving.yaml"):
        if service["kind"] == "Service":
            for port in service["spec"]["ports"]:
                assert port["port"] == ports[port["targetPort"]]
    annotations = manifest("Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(REST)
    [ingress] = manifest("NetworkPolicy")["spec"]["ingress"]
    assert {port["port"] for port in ingress["ports"]} == ports.keys()
    assert argument("serving.Dockerfile", "EXPOSE").split() == [str(GRPC), str(REST)]
    assert (LocalOptions.port, LocalOptions.rest_api_port) == (GRPC, REST)
    client = (ROOT / "serving" / "commands.py").read_text()
    assert f'DEFINE_string("server", "127.0.0.1:{GRPC}"' in client


def test_probes_ask_what_tf_serving_answers():
    for probe in ("startupProbe", "readinessProbe"):
        assert SERVER[probe]["httpGet"] == {"path": f"/v1/models/{schema.MODEL}", "port": "rest"}
    assert SERVER["livenessProbe"]["tcpSocket"] == {"port": "grpc"}


def test_a_server_is_killed_when_its_requests_have_ended():
    """It ignores SIGTERM as process 1, so it answers until the end of the grace period."""
    grace = pod(manifest("Deployment"))["terminationGracePeriodSeconds"]
    assert 0 < grace - SERVER["lifecycle"]["preStop"]["sleep"]["seconds"] <= 5
    assert SERVER["command"] == ["tensorflow_model_server"]  # no shell, which would be process 1


def test_versions_change_pod_by_pod():
    rollout = manifest("Deployment")["spec"]["strategy"]["rollingUpdate"]
    assert rollout == {"maxUnavailable": 0, "maxSurge": 1}
    given = flags(SERVER["args"])
    assert given["file_system_poll_wait_seconds"] == "0"
    assert "model_config_file_poll_wait_seconds" not in given
    assert "generatorOptions" not in kustomization()  # a changed file is a ConfigMap of a new name


def test_nothing_goes_out_from_the_server():
    policy = manifest("NetworkPolicy")["spec"]
    assert policy["egress"] == [] and "Egress" in policy["policyTypes"]


def test_workers_find_each_other(tmp_path):
    """Runs the command of the Job with a `python` that only shows what it gets."""
    fake = tmp_path / "python"
    fake.write_text(f'#!{sys.executable}\nimport os, sys\nprint(os.environ["TF_CONFIG"])\n'
                    "print(sys.argv[1:])\n")  # fmt: skip
    fake.chmod(0o755)
    workers = TRAIN["spec"]["completions"]
    environment = {each["name"]: each["value"] for each in WORKER["env"]}
    environment |= {"JOB_COMPLETION_INDEX": "1", "PATH": str(tmp_path)}
    assert WORKER["command"][:2] == ["python", "-c"]
    done = subprocess.run(
        [sys.executable, *WORKER["command"][1:], *WORKER["args"]],
        env=environment, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    config, arguments = done.stdout.splitlines()
    service = next(d for d in documents("k8s/train.yaml") if d["kind"] == "Service")
    [port] = service["spec"]["ports"]
    name, subdomain = TRAIN["metadata"]["name"], service["metadata"]["name"]
    assert TRAIN["spec"]["template"]["spec"]["subdomain"] == subdomain
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert json.loads(config) == {
        "cluster": {"worker": [f"{name}-{i}.{subdomain}:{port['port']}" for i in range(workers)]},
        "task": {"type": "worker", "index": 1},
    }
    assert arguments == repr(["-m", "trainer.task", *WORKER["args"]])
    assert TRAIN["spec"]["parallelism"] == workers


def test_exit_codes_decide_on_restarts():
    assert "RESTART_ME = os.EX_TEMPFAIL" in (ROOT / "trainer" / "task.py").read_text()
    rules = TRAIN["spec"]["podFailurePolicy"]["rules"]
    codes = {
        code: rule["action"]
        for rule in rules
        for code in rule.get("onExitCodes", {"values": []})["values"]
    }
    assert codes == {1: "FailJob", os.EX_TEMPFAIL: "Ignore"}
    assert rules[0]["onPodConditions"][0]["type"] == "DisruptionTarget"
    for job in WITH_PODS:
        for rule in job["spec"].get("podFailurePolicy", {"rules": []})["rules"]:
            if "onExitCodes" in rule:
                [container] = pod(job)["containers"]
                assert rule["onExitCodes"]["containerName"] == container["name"]


@pytest.mark.parametrize("name", ["prepare", "train", "index"])
def test_programs_have_the_flags_they_are_given(name):
    [container] = pod(manifest("Job", f"mrnn-{name}"))["containers"]
    module = {"prepare": "trainer.prepare", "train": "trainer.task", "index": "export.index"}[name]
    assert module in " ".join(container["command"])
    assert flags(container["args"]).keys() <= option_fields(module).keys()


def test_kserve_serves_the_same_folders():
    services = {d["metadata"]["name"]: d for d in documents("k8s/kserve.yaml")}
    claims = {d["metadata"]["name"] for d in documents("k8s/storage.yaml")}
    for name, service in services.items():
        assert service["apiVersion"] == "serving.kserve.io/v1beta1"
        model = service["spec"]["predictor"]["model"]
        claim, folder = model["storageUri"].removeprefix("pvc://").split("/")
        assert claim in claims and folder == name.replace("-", "_")
        assert model["modelFormat"]["name"] == "tensorflow"
        assert f"tensorflow/serving:{model['runtimeVersion']}" == SERVER["image"]
        given = flags(model["args"])
        assert given.keys() <= TF_SERVING_FLAGS
        assert given.get("model_name", name) == folder  # the runtime's own is the name of this
        assert given["tensorflow_intra_op_parallelism"] == model["resources"]["limits"]["cpu"]
    assert {name.replace("-", "_") for name in services} == {schema.MODEL, schema.INDEX}

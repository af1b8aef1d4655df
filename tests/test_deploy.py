"""What can be known of the images, TF Serving's files and the manifests without a cluster."""

import json
import os
import re
import subprocess
import sys
from fnmatch import fnmatch

import kubernetes_validate
import pytest
import yaml
from deployments import (
    DEPLOY,
    ROOT,
    TF_SERVING_FLAGS,
    argument,
    defined_flags,
    documents,
    flags,
    instructions,
    manifest,
    readme_commands,
)
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    wrappers_pb2,
)
from tensorflow_serving.config import model_server_config_pb2

from mrnn_tf import __version__, schema
from serving.local import LocalOptions

MANIFESTS = documents("k8s/*.yaml")
WITH_PODS = [document for document in MANIFESTS if document["kind"] in ("Deployment", "Job")]
DOCKERFILES = ["train.Dockerfile", "serving.Dockerfile"]
GRPC, REST = 8500, 8501
SERVER = manifest("Deployment")["spec"]["template"]["spec"]["containers"][0]
TRAIN = next(job for job in WITH_PODS if job["metadata"].get("name") == "mrnn-train")
WORKER = TRAIN["spec"]["template"]["spec"]["containers"][0]


def title(document: dict) -> str:
    metadata = document["metadata"]
    return f"{document['kind']} {metadata.get('name', metadata.get('generateName'))}"


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


@pytest.mark.parametrize("document", WITH_PODS, ids=title)
def test_pods_may_do_little(document):
    pod = document["spec"]["template"]["spec"]
    user = pod["securityContext"]
    assert user["runAsNonRoot"] and user["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
    assert "memory" in container["resources"]["limits"]
    assert str(user["runAsUser"]) == argument("train.Dockerfile", "USER")
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_what_is_referred_to_exists():
    kustomization = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())
    assert all((DEPLOY / name).is_file() for name in kustomization["resources"])
    [generated] = kustomization["configMapGenerator"]
    assert all((DEPLOY / name).is_file() for name in generated["files"])
    claims = {manifest("PersistentVolumeClaim")["metadata"]["name"]}
    for document in WITH_PODS:
        for volume in document["spec"]["template"]["spec"]["volumes"]:
            if claim := volume.get("persistentVolumeClaim"):
                assert claim["claimName"] in claims
            if config := volume.get("configMap"):
                assert config["name"] == generated["name"]

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
                [container] = job["spec"]["template"]["spec"]["containers"]
                assert rule["onExitCodes"]["containerName"] == container["name"]


# Programs and their flags


OURS = {
    "Kubernetes, training": ("trainer.task", WORKER["args"]),
    "Vertex AI, training": (
        "trainer.task",
        documents("vertex/custom_job.yaml")[0]["workerPoolSpecs"][0]["containerSpec"]["args"],
    ),
    "README, training": (
        "trainer.task",
        [
            each
            for each in readme_commands("docker run --rm --gpus")[0]
            if "_" in each or "=" in each
        ],
    ),
    "Kubernetes, index": (
        "export.index",
        documents("k8s/index.yaml")[0]["spec"]["template"]["spec"]["containers"][0]["args"],
    ),
}


@pytest.mark.parametrize("case", OURS)
def test_programs_have_the_flags_they_are_given(case):
    module, arguments = OURS[case]
    assert flags(arguments).keys() <= defined_flags(module)
    assert {"data"} < flags(arguments).keys()


@pytest.mark.parametrize(
    "arguments",
    [
        SERVER["args"],
        json.loads(argument("serving.Dockerfile", "CMD")),
        documents("vertex/model.yaml")[0]["model"]["containerSpec"]["args"],
    ],
    ids=["Kubernetes", "Docker", "Vertex AI"],
)
def test_tf_serving_has_the_flags_it_is_given(arguments):
    given = flags(arguments)
    assert given.keys() <= TF_SERVING_FLAGS
    for name, value in given.items():
        if name.endswith("_file"):
            folder, file = os.path.split(value)
            assert folder == "/config" and (DEPLOY / "tf_serving" / file).is_file()
    if "model_config_file" in given:
        # Else a label in the file at the start is an error.
        assert given["allow_version_labels_for_unavailable_models"] == "true"
        assert given["enable_batching"] == "true"


# TF Serving's own files


def parsed(file: str, message):
    return text_format.Parse((DEPLOY / "tf_serving" / file).read_text(), message)


def message_of(name: str, fields: dict[str, str]):
    """A message with fields of the given types: these protos are in no Python package."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{name}.proto", syntax="proto3", dependency=[wrappers_pb2.DESCRIPTOR.name]
    )
    message = file.message_type.add(name=name)
    for number, (field, kind) in enumerate(fields.items(), 1):
        added = message.field.add(name=field, number=number, label=1)
        if kind in ("bool", "string"):
            added.type = {"bool": 8, "string": 9}[kind]
        else:
            added.type, added.type_name = 11, kind
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()


def test_models_and_their_labels():
    config = parsed("models.config", model_server_config_pb2.ModelServerConfig())
    models = {each.name: each for each in config.model_config_list.config}
    assert models.keys() == {schema.MODEL, schema.INDEX}
    mount = next(each for each in SERVER["volumeMounts"] if each["name"] == "work")["mountPath"]
    for name, model in models.items():
        assert model.base_path == f"{mount}/{name}"
        assert model.model_platform == "tensorflow"
        assert model.version_labels.keys() == {"stable", "canary"}
        served = model.model_version_policy.specific.versions
        assert served and set(model.version_labels.values()) <= set(served)
    copies = [
        text.split()[-2:] for name, text in instructions("serving.Dockerfile") if name == "COPY"
    ]
    assert ["models", mount] in copies


def test_batches_are_as_large_as_clients_send():
    number = ".google.protobuf.Int64Value"
    config = parsed(
        "batching.config",
        message_of(
            "BatchingParameters",
            {
                "max_batch_size": number,
                "batch_timeout_micros": number,
                "max_enqueued_batches": number,
                "num_batch_threads": number,
            },
        ),
    )
    source = (ROOT / "serving" / "commands.py").read_text()
    [sent] = re.findall(r'DEFINE_integer\("batch_size", (\d+)', source)
    assert config.max_batch_size.value >= int(sent)
    assert config.num_batch_threads.value == int(SERVER["resources"]["limits"]["cpu"])
    assert config.batch_timeout_micros.value > 0 < config.max_enqueued_batches.value


def test_metrics_are_where_they_are_looked_for():
    message_of("PrometheusConfig", {"enable": "bool", "path": "string"})
    config = parsed(
        "monitoring.config",
        message_of("MonitoringConfig", {"prometheus_config": ".PrometheusConfig"}),
    )
    annotations = manifest("Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert config.prometheus_config.enable
    assert config.prometheus_config.path == annotations["prometheus.io/path"]


# Docker


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_dockerfiles_are_understood(dockerfile):
    known = {"FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}
    names = [name for name, _ in instructions(dockerfile)]
    assert names[0] == "FROM" and set(names) <= known
    assert re.fullmatch(r"\S+:\d+\.\d+\S*", argument(dockerfile, "FROM"))
    assert int(argument(dockerfile, "USER")) > 0
    last = max(at for at, name in enumerate(names) if name in ("RUN", "COPY"))
    assert names.index("USER") > last
    for name in ("ENTRYPOINT", "CMD"):
        assert all(isinstance(each, str) for each in json.loads(argument(dockerfile, name)))


def sources(dockerfile: str) -> list[str]:
    copies = [text.split() for name, text in instructions(dockerfile) if name == "COPY"]
    return [each for copy in copies for each in copy[:-1] if not each.startswith("--")]


@pytest.mark.parametrize(
    ("dockerfile", "source"), [(file, each) for file in DOCKERFILES for each in sources(file)]
)
def test_what_is_copied_exists_and_reaches_the_builder(dockerfile, source):
    made = (ROOT / ".gitignore").read_text().splitlines()
    assert (ROOT / source).exists() or f"{source}/" in made
    ignored = (DEPLOY / "docker" / f"{dockerfile}.dockerignore").read_text().splitlines()
    assert ignored[0] == "*" and f"!{source}" in ignored
    assert not any(fnmatch(source, pattern) for pattern in ignored[1:])


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_the_builder_gets_nothing_else(dockerfile):
    ignored = (DEPLOY / "docker" / f"{dockerfile}.dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == set(sources(dockerfile))


def test_the_image_installs_the_package_under_the_constraints():
    install = argument("train.Dockerfile", "RUN")
    assert "--constraint constraints.txt" in install and '".[train,gpu]"' in install
    assert '"gpu": [' in (ROOT / "setup.py").read_text()
    assert json.loads(argument("train.Dockerfile", "ENTRYPOINT")) == [
        "python",
        "-m",
        "trainer.task",
    ]


def test_images_have_one_version():
    [tensorflow] = re.findall(
        r"^tensorflow==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE
    )
    text = "\n".join(
        path.read_text()
        for path in DEPLOY.rglob("*")
        if path.suffix in (".yaml", ".md", ".Dockerfile")
    )
    servers = re.findall(r"tensorflow[/-]serving:([\w.]+)", text)
    assert len(servers) > 5 and set(servers) == {tensorflow}
    ours = re.findall(r"mrnn-(?:train|serving):(\d+\.[\w.]*)", text)
    assert len(ours) > 5 and set(ours) == {__version__}


def test_files_named_in_the_readme_exist():
    text = (DEPLOY / "README.md").read_text()
    named = set(re.findall(r"serving/deploy/[\w/.]+\w", text))
    assert len(named) > 5
    assert all((ROOT / name).exists() for name in named)

"""The chart, rendered by Helm's own engine, against the schemas of Kubernetes and the daemons."""

from __future__ import annotations

import base64
import importlib
import json
import re
import tomllib
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from chart_settings import SCHEMA, schema
from helm_python import HelmError, lint

from deploying.charts import CHART, containers, of_kind, pod_of, render, values_of
from disco_client.transport.credentials import Credentials
from disco_client.version import __version__
from disco_server.cli.controller import main as controller_command
from disco_server.cli.worker import main as worker_command
from disco_server.config import ControllerConfig, WorkerConfig
from disco_server.core.access import read_tokens
from disco_server.core.quotas import Quota, read_quotas
from disco_server.core.session_state import Priority
from disco_server.worker.environment import PASSED

KUBERNETES = ("1.35", "1.36", "1.37")
SCHEMAS = Path(__file__).parent / "schemas"
OURS = {
    "disco-controller": (controller_command, ControllerConfig),
    "disco-worker": (worker_command, WorkerConfig),
}
PORTS = [{"port": 7600}, {"port": 7603}]
"""The controller's, for gRPC and for frames."""


def settings(manifests, role, config):
    """What a daemon makes of its ConfigMap."""
    text = of_kind(manifests, "ConfigMap", f"-{role}")["data"]["disco.toml"]
    return config.table(), tomllib.loads(text)[role]


# Helm ---------------------------------------------------------------------------------


def test_lint_finds_nothing(variant):
    """Strictly, with every file of values in ci/."""
    report = lint(CHART, values_of(variant), strict=True, kube_version=f"v{KUBERNETES[0]}.0")
    found = [message for message in report["messages"] if message["severity"] > 1]
    assert not found
    assert not report["errors"]


def test_the_chart_is_of_this_release():
    """The image's tag is the version of the packages."""
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__


def test_without_tls_nothing_is_installed():
    """Whoever chooses neither certificates nor insecurity is told what there is to choose."""
    with pytest.raises(HelmError, match=r"certManager\.enabled.*existingSecrets.*insecure"):
        render({})
    with pytest.raises(HelmError, match="insecure: expected false"):
        render({"insecure": True, "tls": {"existingSecrets": {"controller": "some"}}})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("workers.replica", 3),
        ("workers.replicas", "three"),
        ("workers.kind", "DaemonSet"),
        ("workers.gpus", -1),
        ("workers.capabilities", ["SYS_ADMIN"]),
        ("workers.sharedMemory", "much"),
        ("workers.settings.slot", 2),
        ("workers.settings.insecure", True),
        ("controller.settings.listen", "0.0.0.0:1"),
        ("controller.quotas.alice.slot", 1),
        ("controller.drainSeconds", 0.5),
        ("controller.env.NUMBER", 1),
        ("controller.replicas", 2),
        ("image.digest", "latest"),
        ("listenHost", "0.0.0.0:7600"),
        ("tls.certManager.enabled", True),
        ("insecure", "yes"),
    ],
)
def test_the_schema_refuses(path, value):
    """A name or a value that is none is refused by its path, before anything is rendered."""
    values: dict = {}
    *folders, last = path.split(".")
    inner = values
    for folder in folders:
        inner = inner.setdefault(folder, {})
    inner[last] = value
    with pytest.raises(HelmError) as refused:
        render({**values_of("insecure"), **values})
    said = str(refused.value).replace("/", ".")
    assert any(word in said for word in (last, ".".join(folders)))


def test_the_schema_has_the_settings_that_the_tables_have():
    """Every setting may be given that the chart does not set itself, and no other."""
    assert SCHEMA.read_text() == schema(), "`make settings` writes it anew"


def test_quotas_of_owners_are_a_file_that_restarts_no_pod():
    """The controller is told where it is, and reads what was given; its callers have names."""
    secure = values_of("secrets")
    quotas = {"alice": {"slots": 16, "priority": "high"}, "of a team/bob": {"idle_limit_s": 1800}}
    plain, given = render(secure), render({**secure, "controller": {"quotas": quotas}})
    known, chosen = settings(given, "controller", ControllerConfig)
    assert set(chosen) <= set(known)
    folder, _, name = chosen["quota_file"].rpartition("/")
    file = of_kind(given, "ConfigMap", "-quotas")["data"][name]
    assert read_quotas(file, name, Quota()) == {
        "alice": Quota(slots=16, priority=Priority.HIGH),
        "of a team/bob": Quota(idle_limit_s=1800.0),
    }
    (container,) = containers([of_kind(given, "Deployment", "-controller")])
    assert folder in {each["mountPath"] for each in container["volumeMounts"]}
    other = render({**secure, "controller": {"quotas": {"bob": {"slots": 1}}}})
    sums = [
        pod_of(of_kind(made, "Deployment", "-controller"))["metadata"]["annotations"]
        for made in (given, other)
    ]
    assert sums[0] == sums[1]
    assert "quota_file" not in settings(plain, "controller", ControllerConfig)[1]
    with pytest.raises(HelmError, match=r"controller.quotas: expected insecure to be false"):
        render({**values_of("insecure"), "controller": {"quotas": quotas}})


def test_the_schema_knows_every_value():
    """values.yaml has all that may be given, with what counts unless it is."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert jsonschema.Draft202012Validator.check_schema(schema) is None
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def names(part, inside=()):
        for name, entry in part.get("properties", {}).items():
            if not {"settings", "global"} & {name}:
                yield (*inside, name)
                yield from names(entry, (*inside, name))

    for path in names(schema):
        inner = values
        for name in path:
            if name in ("requests", "limits"):
                break
            assert name in inner, f"values.yaml lacks {'.'.join(path)}"
            inner = inner[name]


# Kubernetes ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", KUBERNETES)
def test_every_object_is_one_of_kubernetes(manifests, version):
    """Strictly by the schemas of three releases; of others' kinds by schemas of their own."""
    for made in manifests:
        if (own := SCHEMAS / f"{made['kind']}.json").exists():
            jsonschema.validate(made, json.loads(own.read_text()))
            template = pod_of(made)
            if template is None:
                continue
            made = {  # noqa: PLW2901  (a template is checked as one)
                "apiVersion": "v1",
                "kind": "PodTemplate",
                "metadata": {"name": "template"},
                "template": template,
            }
        assert kubernetes_validate.validate(made, version, strict=True) == version


def test_selectors_find_what_they_are_for(manifests):
    """Those of workloads, Services, budgets and network policies match labels of pods."""
    pods = [pod["metadata"]["labels"] for made in manifests if (pod := pod_of(made))]
    for made in manifests:
        spec = made.get("spec", {})
        for selector in (spec.get("selector"), spec.get("podSelector")):
            wanted = (selector or {}).get("matchLabels", selector)
            if wanted:
                found = [labels for labels in pods if wanted.items() <= labels.items()]
                assert len(found) == 1, made["metadata"]["name"]


def test_ports_have_names_that_pods_know(manifests, variant):
    """Services and probes mean ports that the containers name, and speak as the daemons do."""
    scheme = "HTTP" if variant == "insecure" else "HTTPS"
    for role in ("controller", "worker"):
        kinds = ("Deployment", "StatefulSet", "LeaderWorkerSet")
        (made,) = (
            m
            for m in manifests
            if m["kind"] in kinds and m["metadata"]["name"].endswith(f"-{role}")
        )
        (container,) = pod_of(made)["spec"]["containers"]
        named = {port["name"]: port["containerPort"] for port in container["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container[probe]["httpGet"]
            assert (named[asked["port"]], asked["scheme"]) == (7601, scheme)
        (service,) = (
            m
            for m in manifests
            if m["kind"] == "Service"
            and m["spec"]["selector"]["app.kubernetes.io/component"] == role
        )
        assert {p["targetPort"]: p["port"] for p in service["spec"]["ports"]} == named


def test_the_worker_set_is_found_by_its_service():
    """The names under which workers take arrays are those that the headless Service makes."""
    manifests = render(values_of("secrets"))
    made = of_kind(manifests, "StatefulSet")
    service = of_kind(manifests, "Service", "-worker")
    assert made["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"]


# Pods ---------------------------------------------------------------------------------


def test_pods_are_restricted(manifests):
    """As the pod security standard of that name asks, and with nothing to ask the API with."""
    for made in manifests:
        if not (pod := pod_of(made)):
            continue
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == 65532
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        for volume in spec["volumes"]:
            assert "hostPath" not in volume
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"]["drop"] == ["ALL"]
            assert context["capabilities"].get("add", []) in ([], ["IPC_LOCK"])
            assert container["resources"]["limits"]["memory"]


def test_daemons_find_where_they_may_write(manifests):
    """The root file system is read-only, and what they write to is mounted."""
    for container in containers(manifests):
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert "/tmp" in mounted
        if container["name"] == "worker":
            assert {"/dev/shm", "/var/lib/disco"} <= mounted


def test_no_secret_stands_in_an_argument_or_variable(manifests):
    """Tokens and keys come as files, and ConfigMaps hold none."""
    secrets = [made for made in manifests if made["kind"] == "Secret"]
    tokens = [base64.b64decode(made["data"]["client"]).decode() for made in secrets]
    rest = json.dumps([made for made in manifests if made["kind"] != "Secret"])
    assert not any(token in rest for token in tokens)
    for container in containers(manifests):
        assert not any("secretKeyRef" in str(entry) for entry in container.get("env", []))
        assert "token" not in " ".join(container["command"][:1])


def test_the_grace_is_longer_than_the_drain(manifests, variant):
    """A pod waits for its sessions before it is told to end, and then has time to end them."""
    values = values_of(variant)
    for role, daemon in (("controller", 30), ("worker", 10)):
        (container,) = (c for c in containers(manifests) if c["name"] == role)
        command = container["lifecycle"]["preStop"]["exec"]["command"]
        drain = int(command[3])
        assert command[5:] == (["cordon"] if role == "worker" else [])
        wanted = values.get("workers" if role == "worker" else role, {}).get("drainSeconds", 60)
        assert drain == wanted
        (spec,) = (
            pod["spec"]
            for made in manifests
            if (pod := pod_of(made)) and container in pod["spec"]["containers"]
        )
        assert spec["terminationGracePeriodSeconds"] >= drain + daemon


def test_gpus_are_asked_for_and_offered(manifests, variant):
    """A pod with GPUs requests as many as it may use, and its daemon offers them all."""
    (worker,) = (c for c in containers(manifests) if c["name"] == "worker")
    gpus = values_of(variant).get("workers", {}).get("gpus", 0)
    for which in ("requests", "limits"):
        assert worker["resources"][which].get("nvidia.com/gpu", 0) == gpus
    _, given = settings(manifests, "worker", WorkerConfig)
    assert given.get("devices") == ("cuda" if gpus else None)
    assert ("slots" in given) != bool(gpus)


# Daemons ------------------------------------------------------------------------------


def test_the_daemons_accept_their_settings(manifests, variant):
    """Both read what the chart wrote for them, and refuse none of it."""
    for role, config in (("controller", ControllerConfig), ("worker", WorkerConfig)):
        rows, given = settings(manifests, role, config)
        for name, value in given.items():
            if value != "cuda":  # which asks this machine for its GPUs
                rows[name].read(value, name)
        assert given.get("insecure", False) == (variant == "insecure")
        assert given["http"].endswith(":7601")
    assert ControllerConfig(**settings(manifests, "controller", ControllerConfig)[1])
    given = {k: v for k, v in settings(manifests, "worker", WorkerConfig)[1].items() if v != "cuda"}
    assert WorkerConfig(**given).controller == "disco-controller.ml.svc:7600"


def test_the_commands_have_their_options(manifests):
    """The command lines of the pods are ones that the commands take."""
    for container in containers(manifests):
        if container["name"] in ("controller", "worker"):
            program, *arguments = container["command"]
            command, _ = OURS[program]
            assert command.make_context(program, list(arguments), resilient_parsing=True)
            options = {name for param in command.params for name in param.opts}
            assert {word for word in arguments if word.startswith("--")} <= options


def test_variables_are_ones_that_somebody_reads(manifests):
    """Each DISCO_* is a setting or a credential, and others reach ranks or a library."""
    read = {f"DISCO_{name.upper()}" for _, config in OURS.values() for name in config.table()}
    read |= {f"DISCO_{name.upper()}" for name in Credentials.__dataclass_fields__}
    read |= {f"DISCO_TLS_{name.upper()}" for name in ("ca", "cert", "key")} | {"DISCO_ADDRESS"}
    for container in containers(manifests):
        for entry in container.get("env", []):
            name = entry["name"]
            if name.startswith("DISCO_"):
                assert name in read
            else:
                assert name == "POD_NAME" or name.startswith("OTEL_") or "NCCL_*" in PASSED


@pytest.mark.parametrize("name", ["cert-manager", "leaderworkerset"])
def test_certificates_name_what_is_dialled(name):
    """The controller's is for its Service, and workers' for where they take arrays."""
    manifests = render(values_of(name))
    made = {
        each["spec"]["secretName"]: each["spec"]
        for each in manifests
        if each["kind"] == "Certificate"
    }
    _, given = settings(manifests, "worker", WorkerConfig)
    assert given["controller"].partition(":")[0] in made["disco-controller-tls"]["dnsNames"]
    (worker,) = (c for c in containers(manifests) if c["name"] == "worker")
    (door,) = (e["value"] for e in worker["env"] if e["name"] == "DISCO_ARRAY_LISTEN")
    (pattern,) = made["disco-worker-tls"]["dnsNames"]
    host = door.replace("$(POD_NAME)", "disco-worker-0").partition(":")[0]
    assert re.fullmatch(re.escape(pattern).replace(r"\*", "[^.]+"), host)
    for role in ("controller", "worker", "client"):
        (uri,) = made[f"disco-{role}-tls"]["uris"]
        assert uri.startswith(f"disco://{role}")


def test_the_certificates_of_the_guide_fit():
    """The names that docs/deploy.md lets certificates have are those that are dialled."""
    text = (CHART.parents[2] / "docs" / "deploy.md").read_text()
    (line,) = re.findall(r"^disco certs init pki (.*svc.*)$", text, re.MULTILINE)
    hosts = re.findall(r"--host '?([^' ]+)", line)
    made = render(values_of("cert-manager"))
    names = [n for m in made if m["kind"] == "Certificate" for n in m["spec"].get("dnsNames", [])]
    assert len(hosts) == 2
    assert set(hosts) <= set(names)


def test_each_part_gets_its_own_secrets(manifests, variant):
    """A pod mounts the certificate of its role and the token of its role, and no others."""
    if variant == "insecure":
        assert not [made for made in manifests if made["kind"] == "Secret"]
        return
    entries = {"controller": "tokens", "worker": "worker", "session": "client", "serve": "client"}
    for made in manifests:
        if not (pod := pod_of(made)):
            continue
        (container,) = pod["spec"]["containers"]
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        role = container["name"] if container["name"] in ("controller", "worker") else "client"
        assert volumes["tls"]["secret"]["secretName"] == f"disco-{role}-tls"
        (item,) = volumes["tokens"]["secret"]["items"]
        assert item["key"] == entries[container["name"]]


def test_the_tokens_that_are_made_are_ones_that_a_controller_takes():
    """The file has a line for a worker and a client, with the tokens that these get."""
    data = of_kind(render(values_of("cert-manager")), "Secret")["data"]
    text = {name: base64.b64decode(value).decode() for name, value in data.items()}
    found = {identity.role.value: token for token, identity in read_tokens(text["tokens"], "file")}
    assert found == {"worker": text["worker"], "client": text["client"]}
    assert text["worker"] != text["client"]


def test_only_what_must_talk_talks():
    """The policies let in and out what the daemons need, and by default nothing else."""
    manifests = render({"tls": values_of("secrets")["tls"]})
    client = {"podSelector": {"matchLabels": {"disco-client": "true"}}}

    def peer(role):
        names = {"name": "disco", "instance": "disco", "component": role}
        return {
            "podSelector": {"matchLabels": {f"app.kubernetes.io/{k}": v for k, v in names.items()}}
        }

    controller = of_kind(manifests, "NetworkPolicy", "-controller")["spec"]
    assert controller["ingress"] == [{"ports": PORTS, "from": [peer("worker"), client]}]
    assert controller["egress"] == []
    worker = of_kind(manifests, "NetworkPolicy", "-worker")["spec"]
    assert worker["ingress"] == [
        {"from": [peer("worker")]},
        {"ports": [{"port": 7602}], "from": [client]},
    ]
    assert worker["egress"][0] == {"to": [peer("worker")]}
    assert worker["egress"][1] == {"ports": PORTS, "to": [peer("controller")]}
    assert {port["port"] for port in worker["egress"][2]["ports"]} == {53}
    assert len(worker["egress"]) == 3
    test = of_kind(manifests, "Pod")
    assert client["podSelector"]["matchLabels"].items() <= test["metadata"]["labels"].items()


# The service ----------------------------------------------------------------------------


def test_the_service_is_a_client_that_only_those_who_may_ask_reach():
    """It has a client's variables, label and Secrets, and the workers may read its model."""
    values = yaml.safe_load((CHART / "values-serve.yaml").read_text())
    secrets = {role: f"{role}-tls" for role in ("controller", "worker", "client")}
    made = render({**values, "tls": {"existingSecrets": secrets}})
    pod = of_kind(made, "Deployment", "-serve")["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    test = of_kind(made, "Pod", "-test")
    assert container["env"] == test["spec"]["containers"][0]["env"]
    assert pod["metadata"]["labels"]["disco-client"] == "true"
    assert {volume["name"] for volume in pod["spec"]["volumes"]} == {"tls", "tokens", "tmp"}
    policy = of_kind(made, "NetworkPolicy", "-serve")["spec"]
    assert policy["ingress"] == [{"ports": [{"port": 8000}], "from": [{"podSelector": {}}]}]
    _, given = settings(made, "worker", WorkerConfig)
    assert given["allow_load"] == ["uploads"]
    dockerfile = (CHART.parents[1] / "Dockerfile").read_text()
    (models,) = given["allow_read"]
    assert f"--target {models} " in dockerfile
    assert f"DISCO_ALLOW_READ={models}" in dockerfile


def test_the_service_takes_requests_until_nobody_sends_any():
    """Its pod waits before it is told to end, and its grace is for that and all answers."""
    spec = of_kind(render(values_of("serve")), "Deployment", "-serve")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    program, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    arguments = container["command"]
    drain = int(arguments[arguments.index("--drain-s") + 1])
    assert program == "sleep"
    assert spec["terminationGracePeriodSeconds"] >= int(seconds) + drain + 15


def test_without_it_there_is_no_service():
    """What is not switched on makes nothing."""
    made = render(values_of("secrets"))
    assert not [each for each in made if each["metadata"]["name"].endswith("-serve")]


def test_the_arguments_of_the_service_are_ones_it_knows(monkeypatch):
    """Those that the chart, the compose file and the files of values give."""
    monkeypatch.syspath_prepend(CHART.parents[2] / "examples")
    serve = importlib.import_module("serve")
    compose = yaml.safe_load((CHART.parents[1] / "compose.yaml").read_text())
    made = render(values_of("serve"))
    (container,) = of_kind(made, "Deployment", "-serve")["spec"]["template"]["spec"]["containers"]
    for command in (container["command"], compose["services"]["serve"]["command"]):
        program, script, *arguments = command
        assert (program, script) == ("python3", "/opt/examples/serve.py")
        filled = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in arguments]
        assert serve.parse(filled).workers == 4

"""What engines are given in deploy/kubernetes: by their schemas, and by what belongs together."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import numpy as np
import pytest
import yaml

import disco_client
from deploying.charts import EXAMPLES, Manifest, of_kind, pod_of, render, values_of
from deploying.crds import SCHEMAS, schema_of
from disco_client.transport.credentials import Credentials
from disco_server.config import ControllerConfig, WorkerConfig

QUEUE = "kueue.x-k8s.io/queue-name"
FILES = sorted(file.name for file in EXAMPLES.glob("*.yaml") if "-values" not in file.name)
KINDS = {"StatefulSet", "Deployment", "LeaderWorkerSet", "Pod"}


def documents(name: str) -> list[Manifest]:
    """The objects of a file."""
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


def jobs() -> dict[str, Any]:
    """The jobs of the JobSet by their names."""
    (made,) = documents("jobset.yaml")
    return {each["name"]: each["template"]["spec"] for each in made["spec"]["replicatedJobs"]}


def schema(kind: str) -> dict[str, Any]:
    """The published schema of a kind."""
    return json.loads((SCHEMAS / f"{kind}.json").read_text())


# Schemas ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_every_object_of_an_engine_is_one_by_its_schema(name):
    """The published one, strictly about names that it does not have."""
    for made in documents(name):
        jsonschema.validate(made, schema(made["kind"]))


def test_a_name_that_no_schema_has_is_found():
    """At any depth, as a server would drop it and nobody would know."""
    (made,) = documents("jobset.yaml")
    made["spec"]["replicatedJobs"][0]["template"]["spec"]["backofLimit"] = 0
    with pytest.raises(jsonschema.ValidationError, match="backofLimit"):
        jsonschema.validate(made, schema("JobSet"))


def test_schemas_say_where_they_are_from():
    """Each that was brought here names its project, release, file and licence."""
    for name in FILES:
        for made in documents(name):
            origin = schema(made["kind"])["$comment"]
            assert re.search(r"^From github\.com/\S+/\S+ v[\d.]+: \S+\.yaml; Apache", origin), (
                origin
            )


def test_a_schema_is_as_strict_as_its_definition():
    """Numbers or texts, what may be null, and what keeps unknown names stay what they are."""
    inner = {
        "type": "object",
        "description": "gone",
        "required": ["port"],
        "properties": {
            "port": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}]},
            "none": {"type": "string", "nullable": True},
            "any": {
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": True,
                "properties": {"a": {"type": "string"}},
            },
            "description": {"type": "string"},
        },
    }
    whole = {"type": "object", "properties": {"spec": inner, "status": inner}}
    version = {"name": "v1", "served": True, "schema": {"openAPIV3Schema": whole}}
    definition = {"spec": {"group": "g", "names": {"kind": "K"}, "versions": [version]}}
    made = schema_of(definition, "v1", "here")
    good = {"port": "http", "none": None, "any": {"b": 1}, "description": "stays"}
    whole = {"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n"}, "spec": good}
    jsonschema.validate(whole, made)
    for wrong in ({"port": 1.5}, {"port": 1, "more": 2}, {}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**whole, "spec": wrong}, made)
    assert "status" not in made["properties"]


# Labels and annotations ---------------------------------------------------------------------


def test_labels_and_annotations_reach_what_they_are_for():
    """Those of all objects, of all pods, of one workload and of its pods; the chart's own stay."""
    values = {
        **values_of("serve"),
        "commonLabels": {"on": "objects", "helm.sh/chart": "mine"},
        "commonAnnotations": {"note": "objects"},
        "podLabels": {"pods": "all"},
        "podAnnotations": {"pods": "all"},
    }
    for role in ("controller", "workers", "serve"):
        values[role] = {
            **values.get(role, {}),
            "labels": {"on": role, QUEUE: "disco"},
            "annotations": {"note": role},
            "podLabels": {"pods": role},
            "podAnnotations": {"pods": role},
        }
    for made in render(values):
        facts = made["metadata"]
        role = {"worker": "workers"}.get(
            component := facts["labels"]["app.kubernetes.io/component"], component
        )
        workload = made["kind"] in KINDS - {"Pod"}
        assert facts["labels"]["on"] == (role if workload else "objects")
        assert facts["annotations"]["note"] == (role if workload else "objects")
        assert facts["labels"]["helm.sh/chart"].startswith("disco-")
        assert (QUEUE in facts["labels"]) == workload
        if made["kind"] in KINDS:
            pod = pod_of(made)["metadata"]
            expected = role if workload else "all"
            assert (pod["labels"]["pods"], pod["annotations"]["pods"]) == (expected, expected)
            assert QUEUE not in pod["labels"]  # Kueue's own hooks bring it there


@pytest.mark.parametrize("where", ["commonLabels", "podLabels"])
def test_labels_that_selectors_need_cannot_be_given(where):
    """Such a value is refused, since no selector would find its pods."""
    from helm_python import HelmError

    with pytest.raises(HelmError, match=r"app\.kubernetes\.io"):
        render({**values_of("insecure"), where: {"app.kubernetes.io/name": "mine"}})


# Kueue and LeaderWorkerSet ------------------------------------------------------------------


def queues() -> set[tuple[str, str]]:
    """The namespaces and names of the queues."""
    made = [each for each in documents("kueue-queues.yaml") if each["kind"] == "LocalQueue"]
    return {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in made}


@pytest.mark.parametrize("name", ["kueue", "leaderworkerset"])
def test_workers_alone_wait_in_a_queue_that_there_is(name):
    """The controller does not wait for quota; the gang keeps all of its pods."""
    made = render(values_of(f"example-{name}"))
    labelled = [each for each in made if QUEUE in each["metadata"].get("labels", {})]
    (workers,) = labelled
    assert workers["metadata"]["name"] == "disco-worker"
    assert ("ml", workers["metadata"]["labels"][QUEUE]) in queues()
    budget = of_kind(made, "PodDisruptionBudget", "-worker")
    assert budget["spec"]["maxUnavailable"] == 0


def test_the_gang_fits_into_the_quota():
    """A StatefulSet, or the JobSet, that asked for more than there is would wait for ever."""
    (queue,) = (each for each in documents("kueue-queues.yaml") if each["kind"] == "ClusterQueue")
    (flavor,) = queue["spec"]["resourceGroups"][0]["flavors"]
    quota = {each["name"]: each["nominalQuota"] for each in flavor["resources"]}
    workers = of_kind(render(values_of("example-kueue")), "StatefulSet")
    (container,) = pod_of(workers)["spec"]["containers"]
    asked = workers["spec"]["replicas"] * int(container["resources"]["requests"]["cpu"])
    assert asked <= quota["cpu"]
    assert sum(job["parallelism"] for job in jobs().values()) * 2 <= quota["cpu"]
    flavors = [d["metadata"]["name"] for d in documents("kueue-queues.yaml") if "spec" not in d]
    assert flavors == [flavor["name"]]


# KEDA ---------------------------------------------------------------------------------------


def test_what_is_scaled_is_what_the_chart_makes():
    """The Deployment of the workers, whose number is left to the autoscaler."""
    made = render(values_of("example-keda"))
    (scaled,) = documents("keda-scaledobject.yaml")
    target = scaled["spec"]["scaleTargetRef"]
    workers = of_kind(made, target["kind"], target["name"])
    assert workers["apiVersion"] == target["apiVersion"]
    assert "replicas" not in workers["spec"]
    assert scaled["spec"]["minReplicaCount"] == 0
    assert "Prometheus" not in {each["kind"] for each in made}
    assert of_kind(made, "ServiceMonitor", "-controller")


def test_the_query_counts_by_the_slots_of_a_node():
    """As many nodes as have ranks, and as many as the waiting workers need."""
    (scaled,) = documents("keda-scaledobject.yaml")
    (trigger,) = scaled["spec"]["triggers"]
    slots = values_of("example-keda")["workers"]["settings"]["slots"]
    query = trigger["metadata"]["query"]
    assert f'service="disco-controller"}}) / {slots})' in query
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert float(trigger["metadata"]["threshold"]) == 1


# The right to change pods -------------------------------------------------------------------


def test_nobody_may_change_pods_unless_it_is_turned_on(manifests, variant):
    """Then the controller alone, in its namespace: the verb patch, and a token in its pod."""
    turned_on = values_of(variant).get("workers", {}).get("deletionCost", False)
    rights = [m for m in manifests if m["kind"] in ("Role", "RoleBinding", "ClusterRole")]
    mounted = {
        m["metadata"]["name"]
        for m in manifests
        if (pod := pod_of(m)) and "serviceAccountToken" in json.dumps(pod["spec"]["volumes"])
    }
    if not turned_on:
        assert (rights, mounted) == ([], set())
        return
    assert mounted == {"disco-controller"}
    role, binding = of_kind(rights, "Role"), of_kind(rights, "RoleBinding")
    assert len(rights) == 2
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]
    (subject,) = binding["subjects"]
    accounts = {
        m["metadata"]["name"]: pod["spec"]["serviceAccountName"]
        for m in manifests
        if (pod := pod_of(m))
    }
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    owners = [name for name, account in accounts.items() if account == subject["name"]]
    assert owners == ["disco-controller"]
    policy = of_kind(manifests, "NetworkPolicy", "-controller")["spec"]["egress"]
    assert {"ports": [{"port": 443}, {"port": 6443}]} in policy


def test_no_right_is_given_that_is_of_no_use():
    """What does not compare costs does not get them, and whoever asks for it is told."""
    from helm_python import HelmError

    values = values_of("example-keda")
    values["workers"]["kind"] = "StatefulSet"
    with pytest.raises(HelmError, match=r"deletionCost: expected workers\.kind=Deployment, got"):
        render(values)


# JobSet -------------------------------------------------------------------------------------


def test_pods_of_the_jobset_are_pods_and_restricted():
    """By the schema of Kubernetes, and as the pod security standard of that name asks."""
    for name, job in jobs().items():
        template = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": name},
            "template": job["template"],
        }
        assert kubernetes_validate.validate(template, "1.37", strict=True) == "1.37"
        spec = job["template"]["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = spec["containers"]
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
        assert {"/tmp", "/etc/disco"} <= {m["mountPath"] for m in container["volumeMounts"]}
        assert {m["name"] for m in container["volumeMounts"]} == {
            v["name"] for v in spec["volumes"]
        }


def test_the_daemons_of_the_jobset_accept_their_variables():
    """Each is a setting with a value that its reader takes, or a credential of a client's."""
    found = jobs()
    for role, config in (("controller", ControllerConfig), ("worker", WorkerConfig)):
        (container,) = found[role]["template"]["spec"]["containers"]
        rows = {row.variable: row for row in config.table().values()}
        for entry in container["env"]:
            if entry["name"] != "INDEX":
                rows[entry["name"]].read(entry["value"].replace("$(INDEX)", "3"), entry["name"])
    (container,) = found["program"]["template"]["spec"]["containers"]
    known = {f"DISCO_{name.upper()}" for name in Credentials.__dataclass_fields__}
    known |= {"DISCO_TLS_CA", "DISCO_ADDRESS"}
    assert {entry["name"] for entry in container["env"]} <= known


def test_names_that_are_dialled_are_those_of_the_jobset_and_of_its_certificates():
    """Pods are called by JobSet, job, number and subdomain, which one wildcard has."""
    text = (EXAMPLES / "jobset.yaml").read_text()
    (made,) = documents("jobset.yaml")
    found = jobs()
    domain = f"{made['spec']['network']['subdomain']}.{made['metadata']['namespace']}.svc"
    (host,) = re.findall(r"disco certs init pki --host '([^']+)'", text)
    assert host == f"*.{domain}.cluster.local"
    dialled = set(re.findall(r"value: \"(train-[^:\"]+):", text))
    pods = {f"train-{name}-0-{at}" for name in found for at in ("0", "$(INDEX)")}
    assert dialled
    assert dialled <= {f"{pod}.{domain}.cluster.local" for pod in pods}
    nodes = found["worker"]["parallelism"]
    environment = found["controller"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "DISCO_EXPECT_NODES", "value": str(nodes)} in environment


def commands():
    """Those at the top of the JobSet's file, each in one line."""
    text = (EXAMPLES / "jobset.yaml").read_text()
    lines = re.sub(r"\\\n# +", "", text).splitlines()
    return [line.removeprefix("#   ") for line in lines if line.startswith("#   ")]


def secrets():
    """The Secrets and the ConfigMap that they make: their entries, and the files of these."""
    made = {}
    for line in commands():
        if match := re.search(r"create (?:secret generic|configmap) (\S+) (.*)", line):
            words = [word.removeprefix("--from-file=") for word in shlex.split(match[2])]
            pairs = [word.partition("=") for word in words]
            made[match[1]] = {entry: file or entry for entry, _, file in pairs}
    return made


def test_secrets_of_the_jobset_have_the_files_that_are_read():
    """The commands at its top make each Secret with what its container's variables name."""
    made = secrets()
    for job in jobs().values():
        spec = job["template"]["spec"]
        (files,) = (each["secret"] for each in spec["volumes"] if each["name"] == "files")
        read = re.findall(r"/etc/disco/([\w.]+)", json.dumps(spec["containers"]))
        assert read
        assert set(read) <= made[files["secretName"]].keys()
    assert made["train-program"] == {"program.py": "program.py"}


ELSEWHERE = {"DISCO_LISTEN", "DISCO_FRAMES_PORT", "DISCO_HTTP", "DISCO_CONTROLLER", "DISCO_ADDRESS"}
"""Variables with addresses of pods, for which a test has its own."""


def variables(job, folder, **own):
    """Those of a job's container, with a Secret's files in a folder."""
    (container,) = jobs()[job]["template"]["spec"]["containers"]
    given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    kept = {name: value for name, value in given.items() if name not in ELSEWHERE}
    return {name: value.replace("/etc/disco", str(folder)) for name, value in kept.items()} | own


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_program_runs_with_what_the_commands_of_the_jobset_make(daemons, tmp_path):
    """Certificates and tokens, by the variables of its pods: over TLS, on as many nodes."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    for line in commands():
        if not line.startswith("kubectl"):
            done = subprocess.run(
                ["bash", "-c", line], cwd=tmp_path, env={**os.environ, "PATH": path}, check=False
            )
            assert done.returncode == 0, line
    folders = {}
    for name, entries in secrets().items():
        folder = folders[name] = tmp_path / name
        folder.mkdir()
        for entry, file in entries.items():
            if name != "train-program":
                (folder / entry).write_bytes((tmp_path / file).read_bytes())
                (folder / entry).chmod(0o400)
    controller = daemons.controller(**variables("controller", folders["train-controller"]))
    for at in range(jobs()["worker"]["parallelism"]):
        (work := tmp_path / f"work-{at}").mkdir()
        own = {"DISCO_ARRAY_LISTEN": "127.0.0.1:0", "DISCO_WORK_DIR": str(work)}
        environment = variables("worker", folders["train-worker"], **own)
        daemons.worker(controller.address, "--name", f"train-worker-0-{at}", **environment)
    client = variables("program", folders["train-client"])
    files = {"tls_ca": client["DISCO_TLS_CA"], "token_file": client["DISCO_TOKEN_FILE"]}
    with disco_client.connect(controller.address, num_workers=8, **files) as session:
        total = session.allreduce(session.broadcast(np.ones(3)), op="sum")
        assert total.numpy().tolist() == [8.0] * 3
        assert len({worker.node for worker in session.workers}) == 4

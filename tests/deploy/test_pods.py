"""The controller as it asks for pods to stay, at a server that keeps what it is told."""

from __future__ import annotations

import ssl

import pytest

import disco_client
from deploying.api_server import api_server
from deploying.charts import of_kind, render, values_of
from disco_server.controller.pods import COST, DELETION_COST
from fault_tools.certificates import Pki

TOKEN = "a-token-of-a-service-account"
NODES = ("disco-worker-7d4b9c-x2k4p", "disco-worker-7d4b9c-q8z6n")
OTHER = "somebody-elses-pod"


@pytest.fixture
def pki(tmp_path):
    """Of the API server."""
    return Pki.make(tmp_path / "pki")


@pytest.fixture
def server(pki):
    """An API server with the pods of two workers and one other."""
    secrets = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secrets.load_cert_chain(pki.folder / "controller.pem", pki.folder / "controller.key")
    with api_server(secrets) as running:
        running.token = TOKEN
        for name in (*NODES, OTHER):
            running.store({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name}})
        yield running
        assert not running.refused


@pytest.fixture
def account(tmp_path, pki):
    """What a pod finds of its service account."""
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "token").write_text(TOKEN)
    (folder / "namespace").write_text("ml")
    (folder / "ca.crt").write_bytes(pki.ca.read_bytes())
    return folder


@pytest.fixture
def environment(server):
    """The variables of a pod."""
    return {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.server_port),
    }


def costs(server):
    """The deletion costs of pods that have one."""
    return {
        name: made["metadata"]["annotations"][DELETION_COST]
        for (kind, name), made in server.objects.items()
        if kind == "Pod" and DELETION_COST in made["metadata"].get("annotations", {})
    }


def allowed(asked):
    """Whether the chart's Role permits all that was asked for."""
    rules = of_kind(render(values_of("example-keda")), "Role")["rules"]
    return all(
        any(
            verb in rule["verbs"] and group in rule["apiGroups"] and plural in rule["resources"]
            for rule in rules
        )
        for verb, group, plural in asked
    )


def test_the_pod_of_a_node_asks_to_stay_while_it_has_ranks(
    daemons, server, account, environment, eventually
):
    """Its annotation comes with the first rank and goes with the last; no other pod is touched."""
    options = ("--kubernetes-account", account)
    controller = daemons.controller(*options, **environment)
    for name in NODES:
        daemons.worker(controller.address, "--slots", 2, "--name", name)
    daemons.worker(controller.address, "--slots", 1, "--name", "no-pod")  # which is no error
    before = {"kept": "as it is"}
    server.objects["Pod", NODES[0]]["metadata"]["annotations"] = dict(before)
    with disco_client.connect(controller.address, num_workers=2) as one:
        node = one.workers[0].node
        eventually(lambda: costs(server) == {node: COST}, what=lambda: str(costs(server)))
        (account / "token").write_text("another-one")
        server.token = "another-one"
        with disco_client.connect(controller.address, num_workers=2) as two:
            nodes = {each.node for session in (one, two) for each in session.workers}
            eventually(lambda: costs(server) == dict.fromkeys(nodes & {*NODES}, COST))
    eventually(lambda: costs(server) == {}, what="no pod that asks to stay")
    assert server.objects["Pod", NODES[0]]["metadata"]["annotations"] == before
    assert allowed(server.asked)
    assert set(server.asked) == {("patch", "", "pods")}


def test_a_controller_that_was_started_anew_takes_back_what_is_not_so(
    daemons, server, account, environment, eventually
):
    """A cost that an earlier one left on a pod without ranks goes."""
    pod = server.objects["Pod", NODES[0]]
    pod["metadata"]["annotations"] = {DELETION_COST: COST}
    controller = daemons.controller("--kubernetes-account", account, **environment)
    daemons.worker(controller.address, "--slots", 1, "--name", NODES[0])
    eventually(lambda: costs(server) == {}, what="no pod that asks to stay")


def test_a_server_that_refuses_ends_no_session(daemons, server, account, environment, eventually):
    """The log says what the account needs, and once it may, the pod asks to stay."""
    server.token = "not-this-one"
    controller = daemons.controller("--kubernetes-account", account, **environment)
    daemons.worker(controller.address, "--slots", 1, "--name", NODES[0])
    with disco_client.connect(controller.address, num_workers=1) as session:
        session.sync_all()
        eventually(lambda: "needs the verb patch for pods" in controller.stderr, what="the warning")
        assert costs(server) == {}
        server.token = TOKEN
        eventually(lambda: costs(server) == {NODES[0]: COST}, what="a pod that asks to stay")


@pytest.mark.parametrize("lacking", ["the variables", "a file"])
def test_a_controller_that_is_in_no_pod_says_so(daemons, account, environment, lacking):
    """It ends at once, and names what is missing."""
    if lacking == "a file":
        (account / "namespace").unlink()
    given = environment if lacking == "a file" else {"KUBERNETES_SERVICE_HOST": ""}
    controller = daemons.controller("--kubernetes-account", account, ready=False, **given)
    assert controller.wait() != 0
    wanted = "namespace cannot be read" if lacking == "a file" else "KUBERNETES_SERVICE_HOST"
    assert wanted in controller.stderr
    assert "kubernetes_account: expected" in controller.stderr

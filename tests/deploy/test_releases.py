"""A release's life, by Helm's own engine, against a server that keeps what it is told."""

from __future__ import annotations

import pytest
from helm_python import Config

from deploying.api_server import api_server
from deploying.charts import CHART, values_of

KUBECONFIG = "apiVersion: v1\nkind: Config\n"


@pytest.fixture
def server():
    with api_server() as running:
        yield running
        assert not running.refused


@pytest.fixture
def helm(server):
    fast = {"qps": 1000.0, "burst_limit": 1000}
    with Config(
        kubeconfig_content=KUBECONFIG,
        kube_apiserver=server.url,
        namespace="ml",
        storage_driver="memory",
        **fast,
    ) as config:
        yield config


def test_a_release_comes_changes_goes_back_and_goes(server, helm):
    """Install, upgrade, test, rollback and uninstall; tokens stay through all of it."""
    values = values_of("cert-manager")
    helm.install(CHART, "disco", values, namespace="ml")
    workers = server.objects["StatefulSet", "disco-worker"]
    tokens = server.objects["Secret", "disco-tokens"]["data"]
    assert workers["spec"]["replicas"] == 2
    before = workers["spec"]["template"]["metadata"]["annotations"]["checksum/config"]

    changed = {**values, "workers": {"replicas": 5, "settings": {"slots": 7}}}
    helm.upgrade(CHART, "disco", changed, namespace="ml")
    workers = server.objects["StatefulSet", "disco-worker"]
    assert workers["spec"]["replicas"] == 5
    after = workers["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
    assert before != after  # so that the pods are started anew
    assert server.objects["Secret", "disco-tokens"]["data"] == tokens

    helm.test("disco", timeout=30)
    assert ("Pod", "disco-test") not in server.objects

    helm.rollback("disco")
    assert server.objects["StatefulSet", "disco-worker"]["spec"]["replicas"] == 2
    assert server.objects["Secret", "disco-tokens"]["data"] == tokens
    assert [each["revision"] for each in helm.history("disco")] == [1, 2, 3]

    helm.uninstall("disco")
    assert not server.objects

"""Dashboard, alerts and the chart's small programs, against daemons that run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import disco_client
from deploying.charts import CHART, DEPLOY, EXAMPLES

DASHBOARD = CHART / "dashboards" / "disco.json"
ALERTS = CHART / "dashboards" / "alerts.yaml"
# What Prometheus adds to what it scrapes in Kubernetes.
ADDED = {"namespace", "pod", "service"}


def panels():
    found = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def expressions():
    """All that is asked of Prometheus."""
    rules = [r for g in yaml.safe_load(ALERTS.read_text())["groups"] for r in g["rules"]]
    scaled = yaml.safe_load((EXAMPLES / "keda-scaledobject.yaml").read_text())["spec"]["triggers"]
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    asked += [trigger["metadata"]["query"] for trigger in scaled]
    return asked + [rule["expr"] for rule in rules]


@pytest.fixture(scope="module")
def both(shared_daemons):
    """A controller, and a node with two slots, both of which say where their metrics are."""
    controller = shared_daemons.controller("--http", "127.0.0.1:0")
    node = ("--slots", 2, "--http", "127.0.0.1:0")
    return controller, shared_daemons.worker(controller.address, *node)


def port_of(daemon):
    return re.search(r"metrics at http://127.0.0.1:(\d+)", daemon.stderr)[1]


def scrape(daemon):
    """What a daemon measures, as Prometheus gets it."""
    with urllib.request.urlopen(
        f"http://127.0.0.1:{port_of(daemon)}/metrics", timeout=10
    ) as answer:
        return answer.read().decode()


@pytest.fixture(scope="module")
def measured(both):
    """The names and labels of all metrics of daemons that have had a session."""
    controller, worker = both
    names: dict[str, dict[str, set[str]]] = {}
    with disco_client.connect(controller.address, num_workers=2) as session:
        array = session.empty((3,), "float32")
        session.broadcast(np.ones(3, "float32"), array)
        session.allreduce(array, array)
        session.sync_all()
        for daemon in (controller, worker):
            for family in text_string_to_metric_families(scrape(daemon)):
                for sample in family.samples:
                    labels = names.setdefault(sample.name, {})
                    for label, value in sample.labels.items():
                        labels.setdefault(label, set()).add(value)
    return names


def test_every_metric_is_one_of_the_daemons(measured):
    """By its name, as it comes from /metrics."""
    for expression in expressions():
        asked = set(re.findall(r"\b(?:disco|process)_[a-z0-9_]+", expression))
        assert asked, expression
        assert asked <= measured.keys(), expression


def test_every_label_is_one_of_its_metric(measured):
    """Those that are selected and grouped by, and values that are written out."""
    for expression in expressions():
        names = set(re.findall(r"\b(?:disco|process)_[a-z0-9_]+", expression))
        known = ADDED.union(*(measured[name] for name in names))
        for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
            assert {label.strip() for label in group.split(",")} <= known, expression
        for name, selectors in re.findall(r"\b(disco_[a-z0-9_]+)\{([^}]*)\}", expression):
            for label, value in re.findall(r'([a-z_]+)="([^"]*)"', selectors):
                assert label in {*measured[name], *ADDED}, expression
                assert label in ADDED or value in measured[name][label], expression


def test_legends_use_labels_that_are_left():
    """What a legend shows is what its expression groups by, or a label of a bare metric."""
    for panel in panels():
        for target in panel["targets"]:
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            groups = re.findall(r"\bby \(([^)]*)\)", target["expr"])
            if shown and groups:
                assert shown <= {label.strip() for label in groups[0].split(",")}, panel["title"]


def test_panels_lie_beside_each_other():
    """Each has its place and its number, and none covers another."""
    taken: set[tuple[int, int]] = set()
    found = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in found}) == len(found)
    for panel in found:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_there_is_one_dashboard():
    """The one for people to import is the chart's."""
    assert (DEPLOY / "grafana" / "disco.json").samefile(DASHBOARD)


def start(name, *arguments, **env):
    """Runs a program as its pod does: as an argument of the interpreter."""
    program = (CHART / "files" / name).read_text()
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_check_computes_on_a_worker(both):
    """It ends well where a session can be opened, and says where it computed."""
    controller, _ = both
    running = start("check.py", DISCO_ADDRESS=controller.address)
    said, complaint = running.communicate(timeout=50)
    assert running.returncode == 0, complaint
    assert said.startswith("computed on ")


@pytest.mark.parametrize("which", [0, 1], ids=["controller", "worker"])
def test_draining_waits_for_sessions(both, which):
    """For as long as one is there it waits, and ends when the last one has."""
    url = f"http://localhost:{port_of(both[which])}"
    session = disco_client.connect(both[0].address, num_workers=1)
    with session:
        session.sync_all()
        running = start("drain.py", "50", url)
        hurried = start("drain.py", "0.01", url)
        hurried.communicate(timeout=30)
        assert hurried.returncode == 0  # as long as it may, and no longer
        assert running.poll() is None
    _, complaint = running.communicate(timeout=50)
    assert running.returncode == 0, complaint


def test_a_worker_that_drains_takes_no_new_sessions(daemons, eventually):
    """What runs there goes on, and who comes finds no room; a new controller knows it, too."""
    controller = daemons.controller("--session-lease", "60", "--http", "127.0.0.1:0")
    worker = daemons.worker(controller.address, "--slots", 2, "--http", "127.0.0.1:0")
    with disco_client.connect(controller.address, num_workers=1) as session:
        session.sync_all()
        url = f"http://localhost:{port_of(worker)}"
        running = start("drain.py", "50", url, "cordon")
        eventually(lambda: "takes no new sessions" in controller.stderr, 20, "the cordon")
        eventually(lambda: session.draining == (session.workers[0].node,), 20, "the notice")
        # An autoscaler does not count it: its pod is going.
        assert re.search(r"^disco_nodes_in_use 0.0$", scrape(controller), re.MULTILINE)
        for again in (False, True):
            if again:
                controller.process.kill()
                controller.process.wait()
                daemons.controller("--session-lease", "60", "--listen", controller.address)
            session.sync_all()
            with pytest.raises(disco_client.errors.NoSlots, match="the cluster has 0 slots"):
                disco_client.connect(controller.address, num_workers=1, timeout=2.0)
        assert running.poll() is None
    _, complaint = running.communicate(timeout=50)
    assert running.returncode == 0, complaint

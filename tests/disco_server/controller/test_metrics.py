"""The metrics of daemons that work, as Prometheus gets them."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import disco_client
from disco_client.distributed import DeviceMesh
from disco_server.core.session_state import EndReason


def scrape(url):
    """Every sample by its name and the values of its labels."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def url_of(daemon):
    """Where a daemon's log says that its metrics are."""
    return re.search(r"metrics at (http://\S+)", daemon.stderr).group(1)


@pytest.fixture
def both(daemons):
    """A controller, a node, and the address of each one's metrics."""
    controller = daemons.controller("--http", "127.0.0.1:0")
    worker = daemons.worker(controller.address, "--slots", 2, "--http", "127.0.0.1:0")
    return controller, url_of(controller), url_of(worker)


def test_tensors_that_go_to_another_mesh_pass_no_daemon(both):
    """Neither the controller's streams nor its arrays."""
    controller, at_controller, _ = both
    here, there = DeviceMesh((1,), [0]), DeviceMesh((1,), [1])
    with disco_client.connect(controller.address, num_workers=2) as session:
        x = session.distribute(np.ones((1 << 20,), "float32"), here, "R")
        y = x.redistribute(there, "R")
        session.assign({"x": y}, {"x": x})
        before = scrape(at_controller)
        x.redistribute(there, "S[0]")
        session.assign({"x": y}, {"x": x})
        grown = {
            key: value - before[key]
            for key, value in scrape(at_controller).items()
            if "bytes_total" in key[0]
        }
        assert {"to_workers", "to_clients"} <= {direction for _, direction in grown}
        assert max(grown.values()) < 1 << 16


def test_what_daemons_do_is_counted(both, eventually):
    """Sessions, slots, commands, collectives by kind and size, memory, round trips."""
    controller, at_controller, at_node = both
    before = scrape(at_controller)
    assert before["disco_slots", "free"] == 2
    assert (before["disco_nodes",], before["disco_nodes_in_use",]) == (1, 0)
    with disco_client.connect(controller.address, num_workers=2) as session:
        src = session.empty((300,), "float32")
        session.broadcast(np.ones(300, "float32"), src)
        for _ in range(5):
            session.allreduce(src, src)
        session.sync_all()
        during, node = scrape(at_controller), scrape(at_node)
        assert during["disco_sessions", "running"] == 1
        assert during["disco_nodes_in_use",] == 1
        assert during["disco_streams", "frames", "sessions"] == 1
        assert during["disco_streams", "frames", "nodes"] == 1
        assert during["disco_streams", "grpc", "nodes"] == 0
        assert (during["disco_slots", "free"], during["disco_slots", "taken"]) == (0, 2)
        assert during["disco_commands_total",] >= 8
        assert during["disco_relayed_bytes_total", "to_workers"] > 100
        assert during["disco_relayed_bytes_total", "to_clients"] > 10
        assert node["disco_node_commands_total",] == during["disco_commands_total",]
        assert node["disco_ranks",] == 2
        assert {node["disco_rank_memory_bytes", slot] > 5e6 for slot in "01"} == {True}
        assert node["disco_collective_seconds_count", "allreduce", "4KiB"] == 10
        assert node["disco_collectives_missed_total",] == 0
        again = scrape(at_node)
        assert again["disco_collective_seconds_count", "allreduce", "4KiB"] == 10
        sums = [node[f"disco_collective_{what}_sum", "allreduce", "4KiB"] for what in WAITS]
        assert 0 < sums[0] <= sums[1]
    eventually(lambda: scrape(at_controller)["disco_sessions_ended_total", "closed"] == 1)
    after = scrape(at_controller)
    assert after["disco_sessions_created_total",] == 1
    assert after["disco_sessions", "running"] == 0
    eventually(lambda: scrape(at_controller)["disco_nodes_in_use",] == 0)
    assert after["disco_streams", "frames", "sessions"] == 0
    eventually(lambda: scrape(at_controller)["disco_node_round_trip_seconds_count",] > 0)


WAITS = ("wait_seconds", "seconds")


def test_no_name_is_among_the_labels(both):
    """The sets of labels are bounded: they are the same before and after a session."""
    controller, at_controller, _ = both
    before = set(scrape(at_controller))
    with disco_client.connect(controller.address, num_workers=1, name="secret-plan") as session:
        session.sync_all()
        assert set(scrape(at_controller)) == before
    assert {key[1] for key in before if key[0] == "disco_sessions_ended_total"} == {
        reason.name.lower() for reason in EndReason
    }


def test_readiness_follows_what_a_daemon_can_do(both, daemons, eventually):
    """A node without its controller is alive, and not ready."""
    controller, at_controller, at_node = both

    def status(url, page):
        try:
            with urllib.request.urlopen(url.replace("/metrics", page), timeout=10) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    assert {status(url, "/readyz") for url in (at_controller, at_node)} == {200}
    controller.process.kill()
    eventually(lambda: status(at_node, "/readyz") == 503)
    assert status(at_node, "/healthz") == 200

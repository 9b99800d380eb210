"""One rank on each of eight hosts: MPI starts across all of them, and sums cross the cables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fault_tools.certificates import Pki
from fault_tools.namespaces import NoNamespaces, network

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(180)]

HOSTS = 8
ROOT = Path(__file__).parents[2]

PROGRAM = """
import json
import numpy as np
import disco_client

with disco_client.connect(num_workers=8, timeout=60) as session:
    session.import_python_module("disco_test_functions")
    mine = session.get_global_func("tests.rank_array")
    total = mine([1 << 16], "float64")
    session.allreduce(total, total)
    every = session.empty((8, 2), "int64")
    session.allgather(mine([2], "int64"), every)
    print(json.dumps([
        [rank.node for rank in session.workers],
        [total.numpy(worker)[[0, -1]].tolist() for worker in range(8)],
        [every.numpy(worker).tolist() for worker in range(8)],
    ]))
"""


@pytest.fixture
def hosts():
    """Eight hosts at a bridge."""
    try:
        with network(os.getpid() % 100_000) as joined:
            yield [joined.join(f"host-{at}") for at in range(HOSTS)]
    except NoNamespaces as error:
        pytest.skip(str(error))


def test_eight_hosts_with_a_rank_each_form_one_mpi_world(hosts, daemons, tmp_path):
    """Every rank has what all others brought, and each host sent its share of it."""
    pki = Pki.make(tmp_path, tuple(host.address for host in hosts))
    daemons.prefix = [*hosts[0].within]
    listen = ("--listen", f"{hosts[0].address}:0", "--require-client-cert")
    controller = daemons.controller(*listen, *pki.flags("controller"))
    for host in hosts:
        daemons.prefix = [*host.within]
        # Under the namespaces is one machine; UCX would find its memory, and use that.
        environ = {"PYTHONPATH": str(ROOT / "tests" / "worker_modules"), "UCX_TLS": "tcp,self"}
        options = ("--slots", "1", "--name", host.name, "--rank-threads", "1")
        options = (*options, "--require-client-cert", *pki.flags("worker"))
        daemons.worker(controller.address, *options, **environ)
    before = [host.sent() for host in hosts]
    known = {"DISCO_ADDRESS": controller.address, **pki.variables("client")}
    client = hosts[-1].popen(sys.executable, "-c", PROGRAM, **known)
    try:
        out, err = client.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        client.kill()
        raise
    assert client.returncode == 0, err
    nodes, total, every = json.loads(out)
    assert sorted(nodes) == [host.name for host in hosts]
    assert total == [[36.0, 36.0]] * HOSTS
    assert every == [[[rank] * 2 for rank in range(1, HOSTS + 1)]] * HOSTS
    array = 8 << 16
    for host, sent in zip(hosts, before, strict=True):
        # A reduction leaves a host as no less than its own part, to somebody.
        assert host.sent() - sent >= array // HOSTS

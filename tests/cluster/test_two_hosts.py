"""Two hosts made of network namespaces, joined by a cable that a test can cut.

The first has the controller, a worker daemon and the client, the second one a
worker daemon. Nothing else connects them: each has a network of its own, so MPI
must find its way over the cable.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import uuid

import pytest

pytestmark = [pytest.mark.netns, pytest.mark.slow]

COLLECTIVES = """
import json, sys
import numpy as np
from disco_client import connect

with connect(sys.argv[1], num_workers=4, num_groups=2, ccl="mpi", timeout=40) as session:
    session.import_python_module("disco_test_functions")
    rank_array = session.get_global_func("tests.rank_array")
    found = {"nodes": [place.node for place in session.workers]}
    for count in (3, 2_000_000):
        for in_group in (True, False):
            total = rank_array([count], "float32")
            session.allreduce(total, total, "sum", in_group)
            parts = [total.numpy(worker) for worker in range(4)]
            assert all((part == part[0]).all() and part.size == count for part in parts)
            found[f"sum {count} {in_group}"] = [float(part[0]) for part in parts]
    gathered = session.empty((4,), "int64")
    session.allgather(rank_array([1], "int64"), gathered, in_group=False)
    found["gathered"] = gathered.numpy(3).tolist()
    ring = session.get_global_func("tests.ring")(rank_array([100_000], "float64"))
    found["ring"] = [float(ring.numpy(worker)[0]) for worker in range(4)]
    large = np.arange(1_000_000)
    echoed = session.get_global_func("tests.echo")(large)
    found["array"] = all((echoed.numpy(worker) == large).all() for worker in (0, 3))
print(json.dumps(found))
"""

WAITING = """
import sys
from disco_client import connect, errors

session = connect(sys.argv[1], num_workers=4, timeout=40)
session.import_python_module("disco_test_functions")
session.sync_all()
print("running", flush=True)
sys.stdin.readline()
try:
    session.get_global_func("tests.sleep")(60)
    session.sync_all()
except errors.NodeLost as error:
    print(error.node, flush=True)
with connect(sys.argv[1], num_workers=2, timeout=20) as session:
    session.sync_all()
    print({place.node for place in session.workers}, flush=True)
"""


def ip(*words):
    """Runs iproute2's command."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


class Hosts:
    """Two namespaces and the cable between them."""

    def __init__(self):
        # Names of interfaces have at most 15 characters.
        tag = uuid.uuid4().hex[:8]
        self.names = [f"disco-{tag}-{side}" for side in "ab"]
        self.cables = [f"dc{tag}{side}" for side in "ab"]
        self.addresses = ["10.213.7.1", "10.213.7.2"]

    def build(self):
        for name in self.names:
            ip("netns", "add", name)
        first, second = self.cables
        ip("link", "add", first, "type", "veth", "peer", "name", second)
        for name, cable, address in zip(self.names, self.cables, self.addresses, strict=True):
            ip("link", "set", cable, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
            for device in ("lo", cable):
                ip("-n", name, "link", "set", device, "up")

    def remove(self):
        for name in self.names:
            with contextlib.suppress(subprocess.SubprocessError):
                ip("netns", "delete", name)
        with contextlib.suppress(subprocess.SubprocessError):
            ip("link", "delete", self.cables[0])

    def inside(self, side):
        """What a command begins with that runs on this host."""
        return ["ip", "netns", "exec", self.names[side]]

    def cut(self):
        ip("-n", self.names[1], "link", "set", self.cables[1], "down")


@pytest.fixture
def hosts():
    """The two hosts, or a skip that says why this machine permits none."""
    if shutil.which("ip") is None:
        pytest.skip("two hosts need iproute2's ip")
    made = Hosts()
    try:
        try:
            made.build()
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as error:
            said = getattr(error, "stderr", "") or str(error)
            pytest.skip(f"this machine permits no network namespaces: {said.strip()}")
        yield made
    finally:
        made.remove()


@pytest.fixture
def address(hosts, daemons, tmp_path):
    """A controller and a worker daemon on the first host, another one on the second."""
    config = tmp_path / "disco.toml"
    config.write_text("[controller]\nheartbeat_s = 0.5\nnode_lease_s = 2.0\n")
    daemons.prefix = hosts.inside(0)
    listen = f"{hosts.addresses[0]}:0"
    where = daemons.controller("--listen", listen, "--config", config).address
    daemons.worker(where, "--slots", 2, "--name", "first")
    daemons.prefix = hosts.inside(1)
    daemons.worker(where, "--slots", 2, "--name", "second")
    return where


def start_client(hosts, program, address):
    """A client's program on the first host."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DISCO_")}
    return subprocess.Popen(
        [*hosts.inside(0), sys.executable, "-c", program, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )


def test_collectives_cross_the_cable(hosts, address):
    """Four workers on two hosts, small and large, in groups and over all, and host arrays."""
    with start_client(hosts, COLLECTIVES, address) as client:
        out, err = client.communicate(timeout=50)
    assert client.returncode == 0, err
    found = json.loads(out)
    assert found["nodes"] == ["first", "first", "second", "second"]
    for count in (3, 2_000_000):
        assert found[f"sum {count} True"] == [3, 3, 7, 7]
        assert found[f"sum {count} False"] == [10] * 4
    assert found["gathered"] == [1, 2, 3, 4]
    assert found["ring"] == [4, 1, 2, 3]
    assert found["array"]


def test_a_cut_cable_is_a_lost_node(hosts, address):
    """After the lease, by its name; the slots of the host that is left are free again."""
    with start_client(hosts, WAITING, address) as client:
        try:
            assert client.stdout.readline() == "running\n", client.stderr.read()
            hosts.cut()
            client.stdin.write("go\n")
            client.stdin.flush()
            assert client.stdout.readline() == "second\n", client.stderr.read()
            assert client.stdout.readline() == "{'first'}\n", client.stderr.read()
            assert client.wait(20) == 0
        finally:
            client.kill()

"""What crosses the cable between two hosts, and what comes back when it is mended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fault_tools.certificates import Pki
from fault_tools.namespaces import cut

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SENTENCES = "A cat sits on the mat.\nEine Katze sitzt auf der Matte.\nStocks fell sharply.\n"

PROGRAM = """
import json, sys
import numpy as np
import disco_client

with disco_client.connect(num_workers=4, timeout=20) as session:
    session.import_python_module("disco_test_functions")
    mine = session.get_global_func("tests.rank_array")
    small = session.broadcast(np.arange(6, dtype="float32"))
    total = session.empty((6,), "float32")
    session.allreduce(small, total)
    every = session.empty((4, 3), "int64")
    session.allgather(mine([3], "int64"), every)
    large = mine([1 << 20], "float64")
    print(json.dumps([
        [rank.node for rank in session.workers],
        [small.numpy(worker).tolist() for worker in range(4)],
        [total.numpy(worker).tolist() for worker in range(4)],
        [every.numpy(worker).tolist() for worker in range(4)],
    ]), flush=True)
    sys.stdin.readline()
    session.allreduce(large, large)
    session.sync_all()
    print("reduced", flush=True)
    sys.stdin.readline()
    print(json.dumps([large.numpy(worker)[[0, -1]].tolist() for worker in range(4)]), flush=True)
"""


@pytest.fixture(scope="module")
def pki(two_hosts, tmp_path_factory):
    """Both hosts speak with each other as hosts should: everybody shows a certificate."""
    return Pki.make(tmp_path_factory.mktemp("pki"), tuple(host.address for host in two_hosts))


@pytest.fixture(scope="module")
def address(two_hosts, pki, shared_daemons):
    """A controller and a node on the first host, another node on the second."""
    first, second = two_hosts
    daemons = shared_daemons
    daemons.prefix = [*first.within]
    listen = ("--listen", f"{first.address}:0", "--require-client-cert", *pki.flags("controller"))
    controller = daemons.controller(*listen, "--node-lease", "5", DISCO_HEARTBEAT_S="1")
    path = os.pathsep.join([str(ROOT / "tests" / "worker_modules"), str(EXAMPLES)])
    for host, name in ((first, "near"), (second, "far")):
        daemons.prefix = [*host.within]
        options = ("--slots", "2", "--name", name, "--allow-module", "embedding")
        options = (*options, "--require-client-cert", *pki.flags("worker"))
        # Under the namespaces is one machine; UCX would find its memory, and use that.
        daemons.worker(controller.address, *options, PYTHONPATH=path, UCX_TLS="tcp,self")
    return controller.address


@pytest.fixture
def known(address, pki):
    """What a client's environment says of the cluster."""
    return {"DISCO_ADDRESS": address, **pki.variables("client")}


def test_what_ranks_exchange_goes_through_the_cable(two_hosts, known):
    """Each host sends at least its share of a reduction to the other, which counts it."""
    first, second = two_hosts
    client = first.popen(sys.executable, "-c", PROGRAM, **known)
    with client:
        try:
            line = client.stdout.readline()
            assert line, client.stderr.read()
            nodes, small, total, every = json.loads(line)
            assert nodes == ["near", "near", "far", "far"]
            assert small == [[0, 1, 2, 3, 4, 5]] * 4
            assert total == [[0, 4, 8, 12, 16, 20]] * 4
            assert every == [[[1] * 3, [2] * 3, [3] * 3, [4] * 3]] * 4
            before = first.sent(), second.sent()
            client.stdin.write("\n")
            client.stdin.flush()
            assert client.stdout.readline() == "reduced\n"
            crossed = first.sent() - before[0], second.sent() - before[1]
            client.stdin.write("\n")
            client.stdin.flush()
            assert json.loads(client.stdout.readline()) == [[10.0, 10.0]] * 4
        finally:
            client.stdin.close()
        assert client.wait(30) == 0, client.stderr.read()
    # No way leads around the cable: each host needs what the other's ranks add.
    assert min(crossed) >= 8 << 20


def test_a_client_on_either_host_may_drive_it(two_hosts, known):
    """Arrays go to and from every rank, also from the host without a controller."""
    program = (
        "import numpy as np, disco_client\n"
        "with disco_client.connect(num_workers=4, timeout=20) as s:\n"
        "    array = np.arange(300_000.0)\n"
        "    ref = s.broadcast(array)\n"
        "    assert all((ref.numpy(w) == array).all() for w in range(4))\n"
        "    addresses = s._core.transport._arrays._addresses\n"
        "    print(*sorted({each.rpartition(':')[0] for each in addresses.values()}))\n"
    )
    client = two_hosts[1].popen(sys.executable, "-c", program, **known)
    out, err = client.communicate(timeout=60)
    assert client.returncode == 0, err
    assert out.split() == [host.address for host in two_hosts]


def test_the_embedding_example_gives_the_same_as_on_one_host(two_hosts, known):
    """The language model, split over both hosts, says what it says on one."""
    embed = [sys.executable, str(EXAMPLES / "embed.py"), "--workers", "4", "--json"]
    client = two_hosts[0].popen(*embed, **known)
    out, err = client.communicate(SENTENCES, timeout=60)
    assert client.returncode == 0, err
    local = [sys.executable, "-m", "disco_server.cli.main", "local", "--nodes", "2", "--slots", "2"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("DISCO_")}
    alone = subprocess.run(
        [*local, "--", *embed],
        input=SENTENCES,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=env,
        timeout=60,
        check=False,
    )
    assert alone.returncode == 0, alone.stderr
    both = [np.array([json.loads(x) for x in text.splitlines()]) for text in (out, alone.stdout)]
    assert both[0].shape == (3, 384)
    np.testing.assert_allclose(both[0], both[1], atol=2e-6)


def test_a_cut_cable_ends_the_session_and_a_mended_one_brings_the_node_back(
    two_hosts, known, eventually
):
    """NodeLost names the node that cannot be reached; joined again, it takes sessions."""
    program = (
        "import sys, disco_client\n"
        "from disco_client import errors\n"
        "with disco_client.connect(num_workers=4, timeout=40, logs=False) as s:\n"
        "    total = s.empty((4,), 'float64')\n"
        "    s.allreduce(total, total)\n"
        "    s.sync_all()\n"
        "    print('open', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    s.allreduce(total, total)\n"
        "    try:\n        s.sync_all()\n"
        "    except errors.NodeLost as lost:\n        print('lost', lost.node, flush=True)\n"
    )
    first, second = two_hosts
    with first.popen(sys.executable, "-c", program, **known) as client:
        assert client.stdout.readline() == "open\n", client.stderr.read()
        with cut(second):
            client.stdin.write("\n")
            client.stdin.flush()
            assert client.stdout.readline() == "lost far\n", client.stderr.read()
        client.stdin.close()
        assert client.wait(30) == 0
    again = "import disco_client\ndisco_client.connect(num_workers=4, timeout=50).shutdown()\n"
    client = first.popen(sys.executable, "-c", again, **known)
    _, err = client.communicate(timeout=70)
    assert client.returncode == 0, err

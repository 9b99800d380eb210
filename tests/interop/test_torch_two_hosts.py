"""A process group of torch whose ranks are on two hosts."""

from __future__ import annotations

import json
import sys

import pytest

from fault_tools.certificates import Pki

pytest.importorskip("torch", reason="needs torch: `make interop`")
pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(120)]

MODULE = "disco_torch_functions"
PROGRAM = f"""
import json
import disco_client

with disco_client.connect(num_workers=4, timeout=20) as session:
    session.import_python_module({MODULE!r})
    of_all = session.get_global_func("torch_test.where")().get_all()
    print(json.dumps([[rank.node for rank in session.workers], of_all]))
"""


def test_the_store_and_gloo_use_the_address_that_the_hosts_have_for_each_other(
    two_hosts, daemons, tmp_path
):
    """Torch listens at no other address of a host, not even that of loopback."""
    pki = Pki.make(tmp_path / "pki", tuple(host.address for host in two_hosts))
    daemons.prefix = [*two_hosts[0].within]
    secured = ("--require-client-cert", *pki.flags("controller"))
    controller = daemons.controller("--listen", f"{two_hosts[0].address}:0", *secured)
    for host, name in zip(two_hosts, ("near", "far"), strict=True):
        daemons.prefix = [*host.within]
        options = ("--slots", "2", "--name", name, "--allow-module", MODULE)
        options = (*options, "--require-client-cert", *pki.flags("worker"))
        # Under the namespaces is one machine; UCX would find its memory, and use that.
        daemons.worker(controller.address, *options, UCX_TLS="tcp,self")
    known = {"DISCO_ADDRESS": controller.address, **pki.variables("client")}
    with two_hosts[0].popen(sys.executable, "-c", PROGRAM, **known) as client:
        said, errors = client.communicate(timeout=90)
    assert client.returncode == 0, errors
    nodes, found = json.loads(said)
    assert nodes == ["near", "near", "far", "far"]
    first = two_hosts[nodes[0] == "far"].address
    assert [each[:3] for each in found] == [[4, first, place] for place in ("0", "1", "0", "1")]
    for rank, (_, _, _, added) in enumerate(found):
        assert set(added) == {two_hosts[rank // 2].address}

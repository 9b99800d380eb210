"""Where ranks meet for a process group of torch; tests/interop has the groups themselves."""

from __future__ import annotations

import socket
import sys
from importlib.util import find_spec

import pytest

import disco_client as di
from disco_server.rank.torch_group import data_address, interface_of
from disco_server.rank.torch_watch import calls_wait


def test_ranks_of_one_machine_meet_at_loopback():
    """Whatever address others could reach."""
    assert data_address("", one_machine=True) == ("127.0.0.1", "")
    assert data_address("192.0.2.4", one_machine=True) == ("127.0.0.1", "")


def test_ranks_of_several_machines_meet_at_the_address_of_their_daemon():
    """Without one, what is to be done is said."""
    assert data_address("192.0.2.4", one_machine=False) == ("192.0.2.4", "")
    host, problem = data_address("", one_machine=False)
    assert host == ""
    assert "--array-listen HOST:0" in problem


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.7"])
def test_an_interface_is_found_by_its_address(host):
    """One of loopback has any address of it."""
    assert interface_of(host) in [name for _, name in socket.if_nameindex()]


@pytest.mark.parametrize("host", ["192.0.2.4", "no-such-host.invalid"])
def test_an_address_of_elsewhere_has_no_interface(host):
    """Nor has a name that nobody knows."""
    assert interface_of(host) == ""


WAITS = {
    "work.wait()": True,
    "[each.wait() for each in [work]]": True,
    "work.wait(*(), **{})": True,
    "(None,\n work\n .wait())": True,
    "work.join()": False,
    "work.wait and work.join()": False,
    "work.me.join(work.wait)": False,
    "work.wait.__call__()": False,
}
"""Calls, and whether they are of a method named `wait`."""


@pytest.mark.parametrize("source", WAITS)
def test_a_call_of_a_method_named_wait_is_recognised_by_its_instruction(source):
    """Whatever else its function names; what is called looks at its caller."""
    seen = []

    class Work:
        """Has two methods."""

        def wait(self, *_):
            frame = sys._getframe(1)
            seen.append(calls_wait(frame.f_code, frame.f_lasti))

        join = wait

        @property
        def me(self):
            return self

    exec(compile(source, "calls.py", "exec"), {"work": Work()})
    assert seen == [WAITS[source]]


FUNCTION = """
import disco_server

@disco_server.register_func("lacking.group", torch=True)
def group():
    return "called"
"""


def test_without_torch_all_workers_say_where_it_is_missing(tmp_path):
    """And what to install; the function is not called."""
    if find_spec("torch") is not None:
        pytest.skip("torch is installed here")
    module = tmp_path / "lacking.py"
    module.write_text(FUNCTION)
    with di.ProcessSession(2) as session:
        session.load_source(module)
        with pytest.raises(di.CclError, match=r"workers 0 and 1: torch .*pip install torch"):
            session.get_global_func("lacking.group")().get_all()

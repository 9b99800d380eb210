"""Which door a daemon opens for host arrays."""

from __future__ import annotations

import pytest

from disco_server.security import Guard
from disco_server.settings import Address
from disco_server.worker.array_server import ArrayService, MemoryService, choose_address, make_door

NEAR = ("unix:/run/controller", "127.0.0.1:7600", "localhost:7600", "[::1]:7600")


@pytest.mark.parametrize("controller", NEAR)
def test_where_the_controller_is_near_memory_is_shared(controller):
    """Near is a Unix socket or loopback."""
    assert choose_address(Address.parse(controller)) is None
    assert isinstance(make_door(None, Address.parse(controller), lambda: None), MemoryService)


def test_a_controller_that_nobody_can_find_counts_as_near():
    """Until it is found no client comes, from anywhere."""
    assert choose_address(Address("no-such-host.invalid", 7600)) is None


def test_where_the_controller_is_far_the_way_there_is_an_address():
    """Of this machine, at a port that the system chooses, over gRPC."""
    far = Address("203.0.113.7", 7600)
    chosen = choose_address(far)
    if chosen is None:
        pytest.skip("this machine has no route to elsewhere")
    assert chosen.host not in ("", "203.0.113.7")
    assert chosen.port == 0
    door = make_door(None, far, lambda: None, guard=Guard(insecure=True))
    assert isinstance(door, ArrayService)


def test_a_door_that_others_could_listen_in_at_stays_shut(caplog):
    """Unless a person takes the risk; arrays go through the controller then."""
    caplog.set_level("INFO")
    far = Address("203.0.113.7", 7600)
    if choose_address(far) is None:
        pytest.skip("this machine has no route to elsewhere")
    assert make_door(None, far, lambda: None).address == ""
    assert "arrays through the controller" in caplog.text


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "unix:/run/arrays"])
def test_a_person_s_choice_stands(listen):
    """An address is served over gRPC, however near the controller is."""
    door = make_door(Address.parse(listen, any_port=True), Address.parse(NEAR[0]), lambda: None)
    assert isinstance(door, ArrayService)

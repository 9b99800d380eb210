"""The connection that an MPI launcher gives to a process: what it says, and what it is answered."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from disco_client.errors import ConfigError, ConnectionFailed
from disco_server.worker.launcher_pmi import LauncherPmi

GREETING = b"cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n"
NAME = b"cmd=my_kvsname rc=0 kvsname=1.0\n"


@pytest.fixture
def launcher() -> Iterator[Callable[..., tuple[dict[str, str], list[bytes]]]]:
    """Starts a launcher that gives these answers, one for each line; what it has heard."""
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    threads: list[threading.Thread] = []

    def start(*answers):
        heard: list[bytes] = []

        def answer():
            with ours, ours.makefile("rb") as lines:
                for each, line in zip(answers, lines, strict=False):
                    heard.append(line)
                    ours.sendall(each)

        threads.append(threading.Thread(target=answer))
        threads[0].start()
        variables = {"PMI_FD": str(theirs.fileno()), "PMI_RANK": "1", "PMI_SIZE": "2", "A": "b"}
        return variables, heard

    yield start
    theirs.detach()  # who took it has closed it
    for thread in threads:
        thread.join(20)


def test_the_variables_go_and_the_others_stay(launcher):
    """No MPI that the program starts by itself may speak on the same socket."""
    variables, heard = launcher(GREETING, NAME, b"cmd=finalize_ack rc=0\n")
    fd = int(variables["PMI_FD"])
    os.set_inheritable(fd, True)
    with LauncherPmi.take(variables) as taken:
        assert variables == {"A": "b"}
        assert (taken.rank, taken.size, taken.kvsname) == (1, 2, "1.0")
        assert not os.get_inheritable(fd)
    taken.close()
    assert heard[0] == b"cmd=init pmi_version=1 pmi_subversion=1\n"
    assert heard[-1] == b"cmd=finalize\n"


def test_there_may_be_none():
    """Some of the variables are no launcher."""
    assert LauncherPmi.take({"PMI_RANK": "0", "PMI_SIZE": "2"}) is None


def test_a_text_comes_in_parts_that_may_come_in_pieces(launcher):
    """Both processes call it, and the second one gets what the first one said."""
    variables, heard = launcher(
        GREETING,
        NAME,
        b"cmd=barrier_out rc=0\n",
        b"cmd=get_result rc=0 value=2\n",
        b"cmd=get_result rc=0 value=" + b"a" * 512 + b"\n",
        b"cmd=get_result rc=0 value=b=\n",
        b"cmd=put_result rc=0\ncmd=finalize_ack rc=0\n",
    )
    with LauncherPmi.take(variables) as taken:
        assert taken.share("") == "a" * 512 + "b="
    assert heard[2:6] == [
        b"cmd=barrier_in\n",
        b"cmd=get kvsname=1.0 key=disco\n",
        b"cmd=get kvsname=1.0 key=disco.0\n",
        b"cmd=get kvsname=1.0 key=disco.1\n",
    ]


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ((), "the MPI launcher does not answer: "),
        ((b"HTTP/1.1 400\n",), "expected an MPI launcher that knows PMI-1, which answers init"),
        ((b"cmd=response_to_init rc=-1\n",), "which answers init"),
        ((GREETING, b"cmd=my_kvsname rc=0\n"), "expected kvsname of the MPI launcher"),
    ],
)
def test_what_answers_something_else_is_no_launcher(launcher, answers, said):
    """The error quotes the answer."""
    variables, _ = launcher(*answers)
    with pytest.raises(ConnectionFailed, match=said):
        LauncherPmi.take(variables)


@pytest.mark.parametrize("name", ["PMI_FD", "PMI_RANK", "PMI_SIZE"])
def test_variables_that_are_no_numbers_are_shown(name):
    """All of them, since one of them may be another launcher's."""
    variables = {"PMI_FD": "0", "PMI_RANK": "0", "PMI_SIZE": "1", name: "7x"}
    with pytest.raises(ConfigError, match=rf"of an MPI launcher, got .*{name}=7x"):
        LauncherPmi.take(variables)

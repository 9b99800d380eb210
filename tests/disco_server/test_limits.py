"""Settings of what a session's processes may use."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from disco_client.errors import ConfigError
from disco_server.config import (
    LEAST_MEMORY,
    Account,
    machine_memory,
    passes,
    read_environment,
    read_size,
    read_user,
    size_text,
)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        *(("4GiB", 4 << 30), ("4g", 4 << 30), ("800 MiB", 800 << 20), ("1T", 1 << 40)),
        *(("0", 0), (LEAST_MEMORY, LEAST_MEMORY), ("524288K", 512 << 20)),
    ],
)
def test_sizes_have_units(text, nbytes):
    """Powers of two, as memory is counted; a result is taken back unchanged."""
    assert read_size(text, "w") == nbytes
    assert read_size(read_size(text, "w"), "w") == nbytes


@pytest.mark.parametrize(
    "text", ["4GB", "-1", "", "1.5GiB", "1MiB", None, True, "9" * 15 + "T", []]
)
def test_what_is_no_size_is_refused(text):
    """Also one with which no rank could start; the message says what one looks like."""
    with pytest.raises(ConfigError, match=r"--max-memory: expected a size from 256 MiB up, such"):
        read_size(text, "--max-memory")


def test_a_size_is_told_in_the_unit_that_fits():
    """As people write it."""
    texts = [size_text(n) for n in (3 << 40, 1 << 30, 300 << 20, 5 << 10, 7, 0)]
    assert texts == ["3 TiB", "1 GiB", "300 MiB", "5 KiB", "7 bytes", "0 bytes"]


def test_variables_are_names_patterns_and_values():
    """As a list or as text with commas; each once."""
    assert read_environment("A,B_*,A", "w") == ("A", "B_*")
    assert read_environment(("A=1,2", "B="), "w") == ("A=1,2", "B=")
    assert passes("B_X", ("A", "B_*"))
    assert not passes("C", ("A", "B_*"))


@pytest.mark.parametrize("value", ["", "1A", "A B", ["A", 3], 5, "=x", "A=\0"])
def test_what_is_no_variable_is_refused(value):
    """A typing error would otherwise pass nothing, in silence."""
    with pytest.raises(ConfigError, match=r"--env: expected names of variables"):
        read_environment(value, "--env")


@pytest.mark.parametrize("value", ["PYTHONHASHSEED", "A,PYTHONHASHSEED=7", ["PYTHONHASHSEED=00"]])
def test_the_seed_of_hashes_is_no_setting_of_one_node(value):
    """Workers of all nodes have the same one, so that their sets have one order."""
    with pytest.raises(ConfigError, match=r"--env: expected no PYTHONHASHSEED, which is 0 for"):
        read_environment(value, "--env")
    assert read_environment("PYTHONHASHSEED=0,PYTHON*", "w") == ("PYTHONHASHSEED=0", "PYTHON*")


def test_a_user_is_one_of_this_machine():
    """Nobody is somebody else's by mistake; one's own name changes nothing."""
    assert read_user("web-data.1", "w") == "web-data.1"
    with pytest.raises(ConfigError, match="the name of a user"):
        read_user("a b", "--user")
    with pytest.raises(ConfigError, match="--user: expected a user of this machine"):
        Account.find("nobody-of-that-name")
    assert Account.find(None) is None
    assert Account.find(pwd.getpwuid(os.geteuid()).pw_name) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_root_may_become_another_user():
    """With that user's groups; what it keeps for later lies where it may write."""
    account = Account.find("nobody")
    entry = pwd.getpwnam("nobody")
    assert (account.uid, account.gid) == (entry.pw_uid, entry.pw_gid)
    assert account.groups == tuple(os.getgrouplist("nobody", entry.pw_gid))
    assert f"disco-{entry.pw_uid}" in str(account.cache) or account.home in account.cache.parents


def test_the_machine_has_memory():
    """What the kernel says, in bytes."""
    (line,) = (x for x in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in x)
    kib = int(line.split()[1])
    assert machine_memory() == kib << 10

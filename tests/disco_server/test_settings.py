"""Reading one setting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_client.errors import ConfigError
from disco_server.settings import (
    DEBUG,
    Address,
    did_you_mean,
    file_allowed,
    keeps_order,
    module_allowed,
    read_cache,
    read_folders,
    read_loads,
    visible_gpus,
)

DEFAULTS = ("numpy", "numpy.*", "cupy", "cupy.*")


# --- addresses ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7600", Address(host="127.0.0.1", port=7600)),
        ("gpu-box.example:1", Address(host="gpu-box.example", port=1)),
        ("[::1]:7600", Address(host="::1", port=7600)),
        ("unix:/run/disco.sock", Address(path="/run/disco.sock")),
    ],
)
def test_an_address_reads_back_as_it_was_written(text, address):
    """HOST:PORT, [IPV6]:PORT and unix:/path are understood and printed the same."""
    assert Address.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        ":7600",
        "host:",
        "host:port",
        "host:-1",
        "host:65536",
        "host:0",
        "::1:7600",
        "[::1]",
        "[nonsense]:1",
        "http://host:7600",
        "two words:7600",
        "unix:relative",
        "unix:",
        7600,
        None,
    ],
)
def test_what_is_no_address_is_refused_by_name(text):
    """The error names the setting and repeats what came."""
    with pytest.raises(ConfigError, match=r"^controller: expected .* got ") as caught:
        Address.parse(text, where="controller")
    assert repr(text) in str(caught.value)


def test_a_path_too_long_for_a_socket_is_refused_with_both_lengths():
    """Bytes count, and what frames add has room."""
    assert Address.parse(f"unix:/{'x' * 99}").path == f"/{'x' * 99}"
    expected = r"^listen: expected a path of at most 100 bytes for a Unix socket, got one of 101: "
    with pytest.raises(ConfigError, match=expected):
        Address.parse(f"unix:/{'é' * 50}", where="listen")


@given(st.text())
def test_any_text_is_an_address_or_a_config_error(text):
    """No text whatever makes parsing fail in another way; what is read prints itself."""
    try:
        address = Address.parse(text, any_port=True)
    except ConfigError:
        return
    assert Address.parse(str(address), any_port=True) == address


# --- the allow-list ----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "patterns", "allowed"),
    [
        ("numpy", DEFAULTS, True),
        ("numpy.linalg", DEFAULTS, True),
        ("numpyx", DEFAULTS, False),
        ("os", DEFAULTS, False),
        ("pkg", ("pkg",), True),
        ("pkg.sub.deep", ("pkg",), True),
        ("pkgs", ("pkg",), False),
        ("my.pkg", ("pkg",), False),
        ("pkg_a.ops", ("pkg_*",), True),
        ("anything.at.all", ("*",), True),
        ("Numpy", ("numpy",), False),
        ("numpy", (), False),
        ("", ("*",), False),
        ("numpy.", ("*",), False),
        ("..os", ("*",), False),
        ("os; import sys", ("*",), False),
        ("numpy\n", ("numpy*",), False),
    ],
)
def test_the_allow_list_covers_a_package_and_what_is_in_it(name, patterns, allowed):
    """A pattern matches whole names and the modules inside them, in the right case."""
    assert module_allowed(name, patterns) is allowed


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("models", True),
        ("models/a/b", True),
        ("models/a/../b", True),
        ("models/./a", True),
        ("models2", False),
        ("", False),
        ("models/../secret", False),
        ("models/out", False),
        ("models/out/b", False),
        ("models/in", True),
        ("single", True),
        ("single2", False),
    ],
)
def test_a_file_is_allowed_by_where_it_really_lies(tmp_path, path, allowed):
    """Below a named folder or a file named itself; links and .. lead nowhere else."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "out").symlink_to(tmp_path)
    (tmp_path / "models" / "in").symlink_to(tmp_path / "models" / "a")
    (tmp_path / "alias").symlink_to(tmp_path / "models")
    for folder in ("models", "models/", "alias"):
        listed = (str(tmp_path / "other"), str(tmp_path / "single"), f"{tmp_path}/{folder}")
        assert file_allowed(tmp_path / path, listed) is allowed
    assert file_allowed(tmp_path / path, ("*",))
    assert file_allowed(tmp_path / path, ("/",))
    assert not file_allowed(tmp_path / path, ())


# --- the machine -------------------------------------------------------------


def test_gpus_are_counted_without_a_driver(tmp_path):
    """Device files count for CUDA, compute nodes with a target for ROCm."""
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    for node, target in enumerate(("0", "90402")):
        folder = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{node}"
        folder.mkdir(parents=True)
        (folder / "gfx_target_version").write_text(f"{target}\n")
    assert visible_gpus("cuda", {}, tmp_path) == ("cuda:0", "cuda:1")
    assert visible_gpus("rocm", {}, tmp_path) == ("rocm:0",)
    assert visible_gpus("cuda", {"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path) == ()


# --- near names --------------------------------------------------------------


def test_an_unknown_name_is_answered_with_the_near_one_or_all():
    """Case and dashes do not count; where nothing is near, all names are listed."""
    assert did_you_mean("Log-Levle", ["slots", "log_level"]) == "; did you mean 'log_level'?"
    assert did_you_mean("zzz", ["slots", "name"]) == "; there are slots, name"


@pytest.mark.parametrize(
    ("machine", "keeps"),
    [("x86_64", True), ("AMD64", True), ("aarch64", False), ("arm64", False), ("ppc64le", False)],
)
def test_only_x86_is_trusted_with_the_order_of_stores(monkeypatch, machine, keeps):
    """However the system spells it; an unknown one is not trusted."""
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert keeps_order() is keeps


def test_a_switch_of_the_environment_is_on_off_or_refused():
    """1 and 0, and nothing else, so that nobody debugs in vain."""
    assert DEBUG.value({"DISCO_DEBUG": "1"})
    assert not DEBUG.value({"DISCO_DEBUG": "0"})
    assert not DEBUG.value({"DISCO_DEBUG": ""})
    assert not DEBUG.value({})
    with pytest.raises(ConfigError, match="DISCO_DEBUG: expected 0 or 1, got 'yes'"):
        DEBUG.value({"DISCO_DEBUG": "yes"})


@pytest.mark.parametrize("read", [read_folders, read_loads, read_cache])
def test_the_folder_of_a_user_who_is_not_there_is_refused(read):
    """By the setting's name, as any other value that cannot be."""
    with pytest.raises(ConfigError, match="allow_read: expected a path, or one below ~ or ~USER"):
        read("~nobody-at-all/models", "allow_read")

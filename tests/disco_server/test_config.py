"""What the daemons can be told, and where from."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from disco_client.errors import ConfigError
from disco_server import config
from disco_server.config import ControllerConfig, WorkerConfig
from disco_server.settings import NoVisibleGpu


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch):
    monkeypatch.setattr(config, "cpu_cores", lambda: 4)


@pytest.fixture
def toml(tmp_path):
    def write(text: str) -> Path:
        file = tmp_path / "disco.toml"
        file.write_text(text)
        return file

    return write


# --- slots and devices -------------------------------------------------------


def test_by_default_a_node_offers_a_slot_for_each_core():
    """Without settings: CPU slots by cores, one thread each."""
    node = WorkerConfig()
    assert node.slots == 4
    assert node.devices == ("cpu",) * 4
    assert node.rank_threads == 1
    assert node.name == socket.gethostname()
    assert node.allow_modules == ()


def test_fewer_slots_leave_more_threads_to_each():
    """Two slots on four cores give two threads to each rank."""
    node = WorkerConfig(slots=2)
    assert (node.devices, node.rank_threads) == (("cpu", "cpu"), 2)


def test_more_slots_than_cores_have_one_thread_each():
    """There is no less than one thread."""
    assert WorkerConfig(slots=64).rank_threads == 1


def test_a_retired_setting_is_ignored_and_named(toml):
    """Wherever it was given; each place has a line that says what to do."""
    file = toml("[worker]\nwarm = 3\n")
    lines = []
    given = WorkerConfig.load({"warm": "2"}, {"DISCO_WARM": "1"}, file, lines.append)
    assert given == WorkerConfig.load({}, {})
    assert [line.partition(" is ignored")[0] for line in lines] == [
        "--warm",
        "DISCO_WARM",
        f"[worker] warm in {file}",
    ]
    assert all("leave it out" in line for line in lines)
    WorkerConfig.load({"warm": None}, {}, on_retired=pytest.fail)
    ControllerConfig.load({}, {"DISCO_WARM": "1"}, on_retired=pytest.fail)


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("cuda:0,1", ("cuda:0", "cuda:1")),
        ("cuda:0,cuda:2", ("cuda:0", "cuda:2")),
        ("rocm:3", ("rocm:3",)),
        ("cpu,cuda:0", ("cpu", "cuda:0")),
        ("cpu,cpu", ("cpu", "cpu")),
        (("cuda:1", "cuda:0"), ("cuda:1", "cuda:0")),
    ],
)
def test_a_device_list_gives_one_slot_a_device(text, devices):
    """The devices are named one by one, in the order in which they were given."""
    node = WorkerConfig(devices=text)
    assert node.devices == devices
    assert node.slots == len(devices)


def test_another_number_of_slots_beside_a_device_list_is_refused():
    """The error says how many slots these devices give."""
    assert WorkerConfig(devices="cuda:0,1", slots=2).slots == 2
    with pytest.raises(ConfigError, match=r"slots: expected 2, .* cuda:0,cuda:1.* got 4"):
        WorkerConfig(devices="cuda:0,1", slots=4)


@pytest.mark.parametrize("text", ["", "gpu", "cuda:", "cuda:x", "0,1", "cuda:0,0", "cpu:1", 3, ()])
def test_what_is_no_device_is_refused(text):
    """So is a GPU named twice: two ranks on one would stop its library."""
    with pytest.raises(ConfigError, match=r"^devices: expected "):
        WorkerConfig(devices=text)


def test_a_bare_kind_stands_for_all_its_visible_gpus(monkeypatch):
    """`cuda` takes what this process would see, and refuses where there is none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert WorkerConfig(devices="cuda").devices == ("cuda:0", "cuda:1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(NoVisibleGpu, match=r"visible cuda device, found none.*disco doctor") as no:
        WorkerConfig(devices="cuda")
    assert (no.value.where, no.value.kind) == ("devices", "cuda")


def test_port_zero_is_for_listening_only():
    """A daemon may let the system choose its port; nobody can dial port 0."""
    assert ControllerConfig(listen="127.0.0.1:0").listen_address.port == 0
    with pytest.raises(ConfigError, match="a port from 1 to 65535"):
        WorkerConfig(controller="127.0.0.1:0")


# --- one value ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slots": 0}, "slots: expected a whole number from 1 to 4096, got 0"),
        ({"slots": True}, "slots: expected a whole number from 1 to 4096, got True"),
        ({"slots": "many"}, "slots: expected a whole number from 1 to 4096, got 'many'"),
        ({"rank_threads": 0.5}, "rank_threads: expected a whole number from 1 to 4096, got 0.5"),
        ({"name": "a b"}, "name: expected a name of at most 128 letters"),
        ({"name": "x" * 129}, "name: expected a name of at most 128 letters"),
        ({"allow_modules": ("os.",)}, "allow_modules: expected dotted module names"),
        ({"allow_modules": (1,)}, "allow_modules: expected dotted module names"),
        ({"allow_read": 5}, "allow_read: expected folders, files, or * for everything"),
        ({"allow_read": ("a\0b",)}, "allow_read: expected folders, files, or *"),
        ({"log_level": "loud"}, "log_level: expected one of debug, info, warning, error"),
        ({"log_format": "xml"}, "log_format: expected one of text, json, got 'xml'"),
    ],
)
def test_a_worker_names_the_setting_it_refuses(settings, message):
    """Each error says which setting, what was expected and what came."""
    with pytest.raises(ConfigError) as caught:
        WorkerConfig(**settings)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("value", [0, -1, "soon", float("nan"), float("inf"), True, None])
def test_a_duration_is_a_number_of_seconds_above_zero(value):
    """Anything else is refused, not a number and infinity included."""
    with pytest.raises(ConfigError, match="drain_s: expected a number of seconds above 0"):
        ControllerConfig(drain_s=value)


@pytest.mark.parametrize("value", [-1, "soon", float("nan"), float("inf"), True, None])
@pytest.mark.parametrize("kind", [ControllerConfig, WorkerConfig])
def test_a_limit_is_a_number_of_seconds_or_none_at_all(kind, value):
    """Of either daemon; zero is none."""
    assert kind().command_limit_s == kind(command_limit_s=0).command_limit_s == 0
    assert kind(command_limit_s="1.5").command_limit_s == 1.5
    with pytest.raises(ConfigError, match="command_limit_s: expected a number of seconds, or 0"):
        kind(command_limit_s=value)


def test_a_link_needs_a_dashboard():
    """A file for the address of a page that is not served is refused."""
    with pytest.raises(ConfigError, match="http_link_file: expected an address as --http"):
        ControllerConfig(http="off", http_link_file="link")


def test_a_node_lease_spans_two_heartbeats():
    """A lease that one late heartbeat could end is refused."""
    assert ControllerConfig(node_lease_s=4.0, heartbeat_s=2.0).node_lease_s == 4.0
    with pytest.raises(ConfigError, match=r"at least two heartbeats \(4 s\), got 3"):
        ControllerConfig(node_lease_s=3.0, heartbeat_s=2.0)


def test_a_configuration_does_not_change():
    """It is shared by all parts of a daemon, so nobody may write to it."""
    with pytest.raises(AttributeError):
        ControllerConfig().listen = "elsewhere:1"  # type: ignore[misc]


# --- where settings come from ------------------------------------------------


def test_flags_win_over_environment_over_file_over_default(toml):
    """Each setting is taken from the first of the four that has it."""
    file = toml('[worker]\nslots = 1\nname = "file"\nrank_threads = 3\n')
    environ = {"DISCO_SLOTS": "2", "DISCO_NAME": "environment", "DISCO_RANK_THREADS": ""}
    node = WorkerConfig.load({"slots": 3, "name": None}, environ, file)
    assert (node.slots, node.name, node.rank_threads) == (3, "environment", 3)
    assert node.controller == "127.0.0.1:7600"


def test_without_any_source_the_defaults_hold():
    """An empty environment and no file give what the constructor gives."""
    assert ControllerConfig.load(environ={}) == ControllerConfig()
    assert WorkerConfig.load({"allow_modules": ()}, {}) == WorkerConfig()


def test_the_environment_of_the_process_is_the_default(monkeypatch):
    """Where no environment is given, the process's own counts."""
    monkeypatch.setenv("DISCO_LISTEN", "[::1]:0")
    assert ControllerConfig.load().listen == "[::1]:0"


def test_a_file_may_hold_both_tables(toml):
    """One file serves a whole machine: each daemon reads its own table."""
    file = toml('[controller]\nlisten = "[::1]:1"\nport_file = "p"\n[worker]\nslots = 1\n')
    loaded = ControllerConfig.load({}, {}, file)
    assert (loaded.listen, loaded.port_file) == ("[::1]:1", Path("p"))
    assert WorkerConfig.load({}, {}, file).slots == 1


@pytest.mark.parametrize(
    ("flags", "environ", "text", "where"),
    [
        ({"log_level": "x"}, {}, "", "--log-level: "),
        ({"allow_modules": ("a b",)}, {}, "", "--allow-module: "),
        ({}, {"DISCO_LOG_LEVEL": "x"}, "", "DISCO_LOG_LEVEL: "),
        ({}, {}, '[worker]\nlog_level = "x"', "[worker] log_level in "),
        ({"slots": -1}, {}, "", "--slots: "),
        ({}, {"DISCO_SLOTS": "-1"}, "", "DISCO_SLOTS: "),
    ],
)
def test_an_error_names_the_place_where_the_value_was_written(flags, environ, text, where, toml):
    """A person finds the flag, the variable or the line of the file to change."""
    with pytest.raises(ConfigError) as caught:
        WorkerConfig.load(flags, environ, toml(text))
    assert str(caught.value).startswith(where)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[worker]\nslot = 1", "no setting 'slot'; did you mean 'slots'?"),
        ("[worker]\nallow-modules = []", "did you mean 'allow_modules'?"),
        ("[worker]\nzzz = 1", "no setting 'zzz'; there are controller, slots, "),
        ("[workers]\nslots = 1", "no table or setting 'workers'; did you mean 'worker'?"),
        ("slots = 1", "no table or setting 'slots'; there are controller, worker"),
        ("worker = 1", "expected a table [worker], got 1"),
        ("[worker", "expected TOML, got: "),
    ],
)
def test_a_file_with_a_mistake_is_refused_with_the_near_name(text, message, toml):
    """An unknown key is never passed over in silence."""
    with pytest.raises(ConfigError) as caught:
        WorkerConfig.load({}, {}, toml(text))
    assert message in str(caught.value)
    assert "disco.toml" in str(caught.value)


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    """Whoever names a file wants it read."""
    with pytest.raises(ConfigError, match=r"none\.toml: expected a readable file"):
        WorkerConfig.load({}, {}, tmp_path / "none.toml")


def test_an_unknown_flag_is_an_error():
    """A command that passes a setting which does not exist is found at once."""
    with pytest.raises(ConfigError, match="did you mean 'slots'"):
        WorkerConfig.load({"slot": 1}, {})


def test_nothing_may_be_read_unless_it_is_named():
    """By flags or a list in one variable; paths are made whole where they are written."""
    assert WorkerConfig().allow_read == ()
    assert WorkerConfig.load({"allow_read": ("/a", "b", "/a")}, {}).allow_read == (
        "/a",
        str(Path("b").absolute()),
    )
    assert WorkerConfig.load({}, {"DISCO_ALLOW_READ": "/a, *"}).allow_read == ("/a", "*")


def test_nothing_may_be_saved_unless_it_is_named():
    """As with what may be read, of which it says nothing."""
    assert WorkerConfig().allow_save == ()
    node = WorkerConfig.load({"allow_save": ("/a", "b")}, {})
    assert (node.allow_save, node.allow_read) == (("/a", str(Path("b").absolute())), ())
    assert WorkerConfig.load({}, {"DISCO_ALLOW_SAVE": "/a, *"}).allow_save == ("/a", "*")
    with pytest.raises(ConfigError, match="--allow-save: expected folders"):
        WorkerConfig.load({"allow_save": ("",)}, {})


def test_modules_that_are_allowed_as_a_whole_are_those_that_somebody_names():
    """By flags and by the environment's list; numpy is one of them only where it is named."""
    by_flag = WorkerConfig.load({"allow_modules": ("mine", "numpy", "mine")}, {})
    assert by_flag.allow_modules == ("mine", "numpy")
    by_variable = WorkerConfig.load({}, {"DISCO_ALLOW_MODULES": "mine, other.*"})
    assert by_variable.allow_modules == ("mine", "other.*")


def test_nothing_is_loaded_unless_it_is_said():
    """Folders and files with their whole path, and the word for what clients bring."""
    assert WorkerConfig().allow_load == ()
    node = WorkerConfig.load({"allow_load": ("models", "/srv/a.so", "uploads", "uploads")}, {})
    assert node.allow_load == (str(Path.cwd() / "models"), "/srv/a.so", "uploads")
    node = WorkerConfig.load({}, {"DISCO_ALLOW_LOAD": "*, uploads"})
    assert node.allow_load == ("*", "uploads")
    for wrong in ({"allow_load": ("",)}, {"allow_load": (1,)}):
        with pytest.raises(ConfigError, match="--allow-load: expected folders, files"):
            WorkerConfig.load(wrong, {})


def test_uploads_are_kept_in_the_user_s_folder_for_caches(monkeypatch, tmp_path):
    """Where the user has one; another folder may be named, and how large it may grow."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert WorkerConfig().module_cache == tmp_path / "disco" / "modules"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert WorkerConfig().module_cache == Path("/home/somebody/.cache/disco/modules")
    named = WorkerConfig.load({"module_cache": "kept", "module_cache_mib": 5}, {})
    assert (named.module_cache, named.module_cache_mib) == (Path.cwd() / "kept", 5)
    with pytest.raises(ConfigError, match="--module-cache-mib: expected a whole number from 1"):
        WorkerConfig.load({"module_cache_mib": 0}, {})

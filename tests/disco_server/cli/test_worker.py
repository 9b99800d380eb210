"""``disco-worker`` as a process: its promises, its signals, its refusals."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from disco_client import connect, errors
from disco_client.transport.admin import list_cluster
from disco_client.transport.channel import ReloadingChannel
from disco_server.cli.worker import main


@pytest.fixture(scope="module")
def controller(shared_daemons):
    return shared_daemons.controller()


@pytest.fixture
def no_nodes(controller, eventually):
    """Waits, after the test, until the controller has no node any more."""
    yield

    def empty():
        with contextlib.closing(ReloadingChannel(controller.address)) as line:
            return not list_cluster(line).nodes

    eventually(empty, what="the nodes to leave")


def test_it_says_in_one_line_that_it_is_ready(controller, daemons, no_nodes):
    """The line has the node's name, its slots and the controller; the log is JSON throughout."""
    worker = daemons.worker(
        controller.address, "--name", "told", "--slots", "3", "--log-format", "json"
    )
    assert worker.stdout == (
        f"disco-worker ready: node told, 3 slots, controller {controller.address}\n"
    )
    with connect(controller.address, num_workers=2, name="logged", logs=False) as session:
        session.import_python_module("disco_test_functions")
        session.get_global_func("tests.say")('a "line"\nand another')
        session.sync_all()
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    entries = [json.loads(line) for line in worker.stderr.splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(entry) for entry in entries)
    said = [entry for entry in entries if "another" in entry["message"]]
    assert sorted(entry["rank"] for entry in said) == [0, 1]
    assert {entry["session"] for entry in said} == {"logged"}


def test_a_first_signal_drains(controller, daemons, no_nodes, all_end):
    """SIGTERM: sessions end with NodeLost, nothing is left running, the code is 0."""
    worker = daemons.worker(controller.address, "--name", "leaving", "--slots", "2")
    session = connect(controller.address, num_workers=2, logs=False)
    session.sync_all()
    family = worker.family()
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    with pytest.raises(errors.NodeLost, match="shutting down") as raised:
        session.sync_all()
    assert raised.value.node == "leaving"
    session.shutdown()
    assert len(family) >= 2
    all_end(family)


def test_a_second_signal_leaves_at_once(controller, daemons, no_nodes, all_end):
    """Two signals in a row end the daemon and what runs on it, busy or not."""
    worker = daemons.worker(controller.address, "--name", "hurried", "--slots", "1")
    session = connect(controller.address, num_workers=1, logs=False)
    session.import_python_module("disco_test_functions")
    session.sync_all()
    session.get_global_func("tests.sleep")(600)
    family = worker.family()
    worker.send(signal.SIGINT)
    worker.send(signal.SIGTERM)
    assert worker.wait(10) == 0
    all_end(family)
    with pytest.raises(errors.NodeLost):
        session.sync_all()
    session.shutdown()


def test_settings_come_from_the_file_and_the_environment_too(
    controller, daemons, tmp_path, no_nodes
):
    """A file, a variable and a flag each give what the earlier ones leave open."""
    file = tmp_path / "disco.toml"
    file.write_text('[worker]\nname = "from-file"\nslots = 7\n')
    worker = daemons.worker(controller.address, "--config", file, DISCO_SLOTS="2")
    assert "node from-file, 2 slots" in worker.stdout
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_controller_that_is_away_is_waited_for(daemons, eventually):
    """It says once what it waits for, and leaves when it is told to."""
    worker = daemons.worker("127.0.0.1:1", "--slots", "1", ready=False)
    eventually(lambda: "trying again" in worker.stderr, what="a line about the controller")
    (line,) = worker.stderr.splitlines()
    assert "not connected to the controller at 127.0.0.1:1: UNAVAILABLE" in line
    assert worker.process.poll() is None
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert worker.stdout == ""


def test_an_array_address_in_use_is_refused(controller, daemons):
    """One sentence that names the option, and the exit code 2."""
    options = ("--slots", "1", "--array-listen", controller.address)
    worker = daemons.worker(controller.address, *options, ready=False)
    assert worker.wait() == 2
    (line,) = worker.stderr.splitlines()
    assert f"cannot listen on {controller.address} for arrays" in line
    assert "--array-listen" in line


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--slots", "0"], "--slots"),
        (["--devices", "tpu"], "--devices"),
        (["--name", "two words"], "--name"),
        (["--controller", "10.0.0.1"], "--controller"),
        (["--allow-module", "os; import sys"], "--allow-module"),
        (["--allow-save", ""], "--allow-save"),
        (["--allow-load", ""], "--allow-load"),
        (["--module-cache-mib", "0"], "--module-cache-mib"),
    ],
)
def test_a_wrong_flag_is_refused_by_its_name(arguments, named):
    """Exit code 2, and one line that names the flag and what was expected."""
    shown = CliRunner().invoke(main, arguments)
    assert shown.exit_code == 2
    (line,) = shown.output.splitlines()
    assert named in line
    assert "expected" in line


@pytest.mark.parametrize(("devices", "visible"), [("cuda:0", ""), ("cuda", "0")])
def test_a_gpu_that_cannot_be_used_is_refused_at_the_start(daemons, machine, devices, visible):
    """Without driver and cupy: one line that says what is missing, and no node that offers it."""
    machine.cupy("raise ModuleNotFoundError('no', name='cupy')")
    machine.set(CUDA_VISIBLE_DEVICES=visible)
    worker = daemons.worker("127.0.0.1:1", "--devices", devices, ready=False)
    assert worker.wait() == 2
    (line,) = worker.stderr.splitlines()
    assert "--devices: cuda:0 cannot be used on this machine: " in line
    assert "cupy is not installed" in line
    assert "`disco doctor --gpu` shows every check" in line


def test_a_machine_that_shows_no_gpu_says_why(daemons, machine):
    """Where `cuda` stands for none, the line tells what such a machine would need."""
    machine.cupy("raise ModuleNotFoundError('no', name='cupy')")
    machine.set(CUDA_VISIBLE_DEVICES="")
    worker = daemons.worker("127.0.0.1:1", "--devices", "cuda", ready=False)
    assert worker.wait() == 2
    (line,) = worker.stderr.splitlines()
    assert "--devices: expected a machine with a visible cuda device, found none: " in line
    assert "cupy is not installed" in line


def test_gpus_are_offered_with_driver_and_cupy_replaced(controller, daemons, machine):
    """The daemon offers a slot for each, and has not loaded what it asked about."""
    machine.driver()
    machine.cupy()
    worker = daemons.worker(controller.address, "--devices", "cuda:0,1")
    assert ", 2 slots," in worker.stdout
    maps = Path(f"/proc/{worker.process.pid}/maps").read_text()
    assert "libcuda" not in maps


def test_the_check_of_gpus_can_be_left_out(controller, daemons, machine):
    """Whoever knows better offers devices that do not pass it."""
    machine.cupy("raise ModuleNotFoundError('no', name='cupy')")
    options = ("--devices", "cuda:0", "--device-check", "off")
    assert ", 1 slot," in daemons.worker(controller.address, *options).await_ready()

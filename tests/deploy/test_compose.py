"""The compose file: what it says of the daemons is so. `make image-test` runs it."""

from __future__ import annotations

import re

import pytest
import yaml

from deploying.charts import DEPLOY
from disco_client.transport.credentials import Credentials
from disco_server.cli.controller import main as controller_command
from disco_server.cli.worker import main as worker_command
from disco_server.config import ControllerConfig, WorkerConfig

COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
DAEMONS = {
    "controller": (controller_command, ControllerConfig),
    "worker": (worker_command, WorkerConfig),
}


@pytest.mark.parametrize("name", SERVICES)
def test_containers_may_do_little(name):
    """No capabilities, no new privileges, nothing to write to but temporary folders."""
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service.get("cap_add", []) == (["CHOWN"] if name == "setup" else [])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"]
    assert ("user" in service) == (name == "setup")
    assert not {"privileged", "pid", "ipc", "devices"} & service.keys()


@pytest.mark.parametrize("role", DAEMONS)
def test_daemons_are_told_what_they_know(role):
    """Their options and variables are ones of the commands, and TLS and tokens are among them."""
    command, config = DAEMONS[role]
    program, *arguments = SERVICES[role]["command"]
    assert program == f"disco-{role}"
    filled = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in arguments]
    context = command.make_context(program, filled)
    variables = SERVICES[role]["environment"]
    given = {name: value for name, value in context.params.items() if name != "config"}
    settings = config.load(given, variables)
    assert not settings.insecure
    assert settings.auth_token_file
    known = {f"DISCO_{name.upper()}" for name in config.table()}
    assert variables.keys() <= known


def test_only_the_controller_and_the_service_are_reached_from_outside():
    """And at the loopback address of the machine alone."""
    published = {name: service.get("ports", []) for name, service in SERVICES.items()}
    assert [name for name, ports in published.items() if ports] == ["controller", "serve"]
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_everybody_gets_a_volume_of_his_own():
    """What `setup` writes for a role is mounted where that role looks, and nowhere else."""
    script = SERVICES["setup"]["command"][-1]
    written = set(re.findall(r"/secrets/(\w+/[\w.]+)$", script, re.MULTILINE))
    for role in ("controller", "worker", "client"):
        assert SERVICES[role]["volumes"] == [f"{role}:/run/disco:ro"]
        files = {
            value.removeprefix("/run/disco/")
            for value in SERVICES[role]["environment"].values()
            if value.startswith("/run/disco/")
        }
        own = {name for name in written if name.startswith(role)} - {"client/part"}
        assert own == {f"{role}/{file}" for file in files}


def test_the_client_has_what_a_client_reads():
    """Its variables are those of `connect()`."""
    known = {f"DISCO_TLS_{name.upper()}" for name in ("ca", "cert", "key")}
    known |= {"DISCO_ADDRESS", "DISCO_TOKEN_FILE"}
    assert SERVICES["client"]["environment"].keys() <= known
    assert SERVICES["serve"]["environment"] == SERVICES["client"]["environment"]
    assert SERVICES["serve"]["volumes"] == SERVICES["client"]["volumes"]
    assert {"token_file", "ca"} <= Credentials.__dataclass_fields__.keys()

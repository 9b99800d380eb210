"""What ranks get of the daemon's environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from disco_server.config import Account, WorkerConfig
from disco_server.worker.environment import rank_environment

CONFIG = WorkerConfig(slots=4, rank_threads=3)


def test_ranks_share_the_cores():
    """A rank's numerical libraries get as many threads as the setting says."""
    environ = rank_environment(CONFIG, {})
    assert environ["OMP_NUM_THREADS"] == environ["MKL_NUM_THREADS"] == "3"


def test_what_a_person_set_stands():
    """A thread count in the daemon's environment is not overruled."""
    assert rank_environment(CONFIG, {"OPENBLAS_NUM_THREADS": "7"})["OPENBLAS_NUM_THREADS"] == "7"


@pytest.mark.parametrize("given", [{}, {"PYTHONHASHSEED": "random"}, {"PYTHONHASHSEED": "7"}])
@pytest.mark.parametrize("env", [(), ("*",), ("PYTHON*",)])
def test_ranks_of_all_nodes_hash_alike(given, env):
    """Whatever the environment of one daemon says, and whatever passes."""
    config = WorkerConfig(slots=1, env=env)
    assert rank_environment(config, given)["PYTHONHASHSEED"] == "0"


@pytest.mark.parametrize(
    "name",
    [
        *("PMI_FD", "PMI_RANK", "DISCO_AUTH_TOKEN_FILE", "DISCO_TLS_KEY", "DISCO_TOKEN"),
        *("AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "HTTPS_PROXY", "MY_PROGRAM", "PYTHON_API_KEY"),
        *("SSH_AUTH_SOCK", "KUBERNETES_SERVICE_HOST", "DISCO_PARENT_PID", "TVM_TOKEN"),
        *("UCX_AUTH", "NCCL_PASSPHRASE", "PYTHON_KEYRING", "TVM_PAT", "CUDA_PASS", "MKL_KEYS"),
        *("PYTHON_token", "NCCL_Secret", "CUDA_auth_file", "TVM_pat", "UCX_api_key"),
    ],
)
def test_what_computing_does_not_need_stays_outside(name):
    """Credentials, other launchers' variables, and everything that nobody named."""
    needed = {"LANG": "C", "NCCL_IB_PKEY": "1", "LD_LIBRARY_PATH": "/l", "PYTHONPATH": "/p"}
    environ = rank_environment(CONFIG, {name: "something", **needed})
    assert name not in environ
    assert needed.items() <= environ.items()


def test_settings_pass_more():
    """By name, by pattern and with a value of their own; also what sounds like a secret."""
    config = WorkerConfig(env=("MY_*", "HF_TOKEN", "MODE=fast=1", "LANG=de"))
    given = {"MY_A": "1", "HF_TOKEN": "2", "OTHER": "3", "LANG": "C"}
    environ = rank_environment(config, given)
    wanted = {"MY_A": "1", "HF_TOKEN": "2", "MODE": "fast=1", "LANG": "de"}
    assert {name: environ[name] for name in wanted} == wanted
    assert "OTHER" not in environ


def test_no_setting_passes_what_is_the_daemon_s_own():
    """Not even the pattern for everything; that belongs to a program's own workers."""
    config = WorkerConfig(env=("*", "DISCO_TOKEN", "PMI_RANK=3"))
    given = {"DISCO_TOKEN": "x", "DISCO_TLS_KEY": "x", "PMI_FD": "3", "A": "1"}
    environ = rank_environment(config, given)
    assert environ["A"] == "1"
    assert not [name for name in environ if name.startswith(("DISCO_T", "PMI"))]


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (("*",), set()),
        (("*", "OTEL_*"), {"OTEL_SERVICE_NAME", "OTEL_EXPORTER_OTLP_HEADERS"}),
        (("OTEL_SERVICE_NAME",), {"OTEL_SERVICE_NAME"}),
        (("OTEL_SERVICE_NAME=mine",), {"OTEL_SERVICE_NAME"}),
    ],
)
def test_telemetry_is_passed_by_its_own_name_only(said, wanted):
    """Ranks make no spans, and its headers often hold a key; who names it gets it."""
    given = {"OTEL_SERVICE_NAME": "s", "OTEL_EXPORTER_OTLP_HEADERS": "api-key=x"}
    environ = rank_environment(WorkerConfig(env=said), given)
    assert {name for name in environ if name.startswith("OTEL_")} == wanted


def test_paths_of_modules_are_whole(tmp_path, monkeypatch):
    """Ranks work in folders of their own, where others would lead elsewhere."""
    monkeypatch.chdir(tmp_path)
    environ = rank_environment(CONFIG, {"PYTHONPATH": "one:/two"})
    assert environ["PYTHONPATH"] == f"{tmp_path}/one:/two"


def test_another_user_has_another_home():
    """What the daemon's user keeps at home is not for ranks that are somebody else's."""
    account = Account("worker", 1234, 1234, (1234,), Path("/home/worker"))
    environ = rank_environment(CONFIG, {"HOME": "/root", "USER": "root"}, account)
    assert (environ["HOME"], environ["USER"]) == ("/home/worker", "worker")

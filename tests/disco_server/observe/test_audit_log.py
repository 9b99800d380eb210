"""The lines of the audit log."""

from __future__ import annotations

import json
import logging

import pytest

from disco_client.errors import ConfigError
from disco_server.observe import logs


@pytest.fixture(autouse=True)
def untouched():
    """Leaves the logger as it was."""
    logger = logging.getLogger(logs.AUDIT_LOGGER)
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    for handler in logger.handlers:
        if handler not in before[0]:
            handler.close()
    logger.handlers, logger.level, logger.propagate = before


def test_a_line_has_its_fields(caplog):
    """Those that are empty are left out; a refusal is graver than the rest."""
    caplog.set_level(logging.INFO)
    logs.record("session created", who="client alice", session="s", node="n")
    logs.record("refused", outcome="no token", what="x" * 1000)
    first, second = caplog.records
    assert (first.message, first.who, first.session, first.node) == (
        "session created",
        "client alice",
        "s",
        "n",
    )
    assert (first.levelname, second.levelname) == ("INFO", "WARNING")
    assert not hasattr(first, "peer")
    assert len(second.what) < 1000


def test_a_file_gets_them_whatever_is_logged(tmp_path):
    """As JSON, in a file that nobody else reads, and after it was moved away in a new one."""
    path = tmp_path / "audit"
    logs.setup_audit(path)
    logs.record("first")
    path.rename(tmp_path / "old")
    logs.record("second")
    assert json.loads((tmp_path / "old").read_text())["message"] == "first"
    assert json.loads(path.read_text())["message"] == "second"
    assert (tmp_path / "old").stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_is_refused(tmp_path):
    """When the daemon starts."""
    with pytest.raises(ConfigError, match=r"audit_log: .*cannot be written"):
        logs.setup_audit(tmp_path / "none" / "audit")
    logs.setup_audit(None)


def test_a_flood_of_refusals_does_not_fill_the_disk(caplog, monkeypatch):
    """So many a second are written, and then how many were not."""
    now = [100.0]
    monkeypatch.setattr(logs, "monotonic", lambda: now[0])
    refusals = logs.Refusals()
    for _ in range(1000):
        refusals.record("refused", outcome="no token")
    assert len(caplog.records) == 20
    now[0] += 1.0
    refusals.record("refused", outcome="no token")
    assert caplog.records[20].outcome == "980 more refusals were not written"
    assert len(caplog.records) == 22

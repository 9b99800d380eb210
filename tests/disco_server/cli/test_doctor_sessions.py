"""``disco doctor --session``: what the ranks of somebody's session do."""

from __future__ import annotations

import json

from click.testing import CliRunner

from disco_server.cli.main import main


def doctor(address, *arguments):
    return CliRunner().invoke(main, ["doctor", *arguments, "--address", address], prog_name="disco")


def test_it_says_which_rank_is_waited_for(cluster, open_session, tmp_path, eventually):
    """With its stack, while the session's own program knows nothing of it; exit code 1."""
    session = open_session(2, name="stuck")
    gate = tmp_path / "gate"
    session.get_global_func("tests.wait_for_file_on")(1, str(gate))

    def shown():
        found = doctor(cluster.address, "--session", "stuck")
        stands = "rank 1 has been in user function tests.wait_for_file_on" in found.output
        return found.output if stands and found.exit_code == 1 else None

    output = eventually(shown, what="the verdict on rank 1")
    assert "in wait_for_file_on" in output
    assert "issued" not in output
    plain = json.loads(doctor(cluster.address, "--session", session.session_id, "--json").stdout)
    assert (plain["session"], plain["num_workers"], len(plain["ranks"])) == ("stuck", 2, 2)
    assert not plain["goes_on"]
    gate.touch()
    session.sync_all()
    assert doctor(cluster.address, "--session", "stuck").exit_code == 0  # idle


def test_a_session_that_nobody_knows_is_refused(cluster):
    """The exit code is 5, and the line says which there are."""
    refused = doctor(cluster.address, "--session", "nobody's")
    assert refused.exit_code == 5
    assert "expected a session that runs" in refused.output

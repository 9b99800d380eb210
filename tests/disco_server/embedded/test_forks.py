"""Sessions in processes that are forked from their own."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("kind", ["ProcessSession", "ThreadedSession"])
def test_a_forked_child_cannot_harm_its_parents_session(run_program, kind):
    """Its calls are refused, and its end leaves the workers alone."""
    program = run_program(
        "import disco_client, os, sys\n"
        f"session = disco_client.{kind}(2, logs=False)\n"
        "session.sync_all()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n"
        "        session.sync_all()\n"
        "    except disco_client.SessionClosed as error:\n"
        "        sys.exit(33 if 'forked' in str(error) else 1)\n"
        "status = os.waitpid(pid, 0)[1]\n"
        "session.sync_all()\n"
        "print(os.waitstatus_to_exitcode(status))\n"
    )
    code, out, err = program.finish()
    assert (code, out.strip()) == (0, "33"), err

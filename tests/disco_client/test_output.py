"""Lines of workers at the client."""

from __future__ import annotations

from disco_client.output import drop_logs, print_logs


def test_each_line_is_printed_with_its_rank(capsys):
    """On standard error, whichever of its two outputs the worker used."""
    print_logs(3, "node-1", False, ["first", "second"])
    print_logs(0, "node-0", True, ["third"])
    drop_logs(0, "node-0", True, ["fourth"])
    assert capsys.readouterr() == (
        "",
        "[worker 3 node-1] first\n[worker 3 node-1] second\n[worker 0 node-0] third\n",
    )

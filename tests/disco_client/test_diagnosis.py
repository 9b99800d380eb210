"""A diagnosis as text, as a table and as plain values."""

from __future__ import annotations

import json

from disco_client.diagnosis import Diagnosis
from disco_client.wire.codec import Action
from disco_client.wire.reports import CommandReport, Inspection, RankReport, RankState

STACK = """Stack (most recent call first):
  File "/home/me/<train>.py", line 5 in load_batch
  File "/lib/disco_server/rank/executor.py", line 1 in _call
  File "/lib/disco_server/rank/process.py", line 1 in main
"""
BUSY = CommandReport(7, Action.CALL_PACKED, "load_batch", 41.0)
DONE = CommandReport(6, Action.COPY_TO_WORKER0, "", 0.5, failed=True)
RANKS = (
    RankReport(0, "a", 11, finished=DONE, stack=STACK),
    RankReport(1, "a", 12, current=BUSY, stack=STACK),
    RankReport(2, "b", 13, current=BUSY, stack=STACK),
    RankReport(3, "b", 14, RankState.STOPPED, note="the process is stopped"),
)
FOUND = Diagnosis.of(Inspection(1, "training", 4, RANKS), issued=8)


def test_the_text_has_verdict_table_and_stacks():
    """Stacks of busy ranks alone, each once, from the command on."""
    text = str(FOUND)
    lines = text.splitlines()
    assert lines[0] == "session 'training': 4 workers, commands issued up to #8"
    assert lines[1] == f"verdict: {FOUND.verdict}"
    assert "#6 copy_to_worker_0, failed, 0.5 s ago" in text
    assert "#7 load_batch for 41 s" in text
    assert text.count("in load_batch") == 1
    at = lines.index("stack of ranks 1 and 2:")
    assert lines[at + 1 : at + 3] == ['  File "/home/me/<train>.py", line 5 in load_batch', ""]
    assert lines[-2:] == ["stack of rank 3:", "  (the process is stopped)"]
    assert "executor.py" not in text


def test_the_table_of_a_notebook_is_escaped():
    """What ranks are called, and where they are, is not ours."""
    table = FOUND._repr_html_()
    assert "&lt;train&gt;.py" in table
    assert "<train>" not in table
    assert table.count("<tr>") == 5


def test_plain_values_survive_json():
    """With the words for each command, and without the memory that was copied."""
    plain = json.loads(json.dumps(FOUND.as_dict()))
    assert plain["verdict"] == FOUND.verdict
    assert plain["issued"] == 8
    assert plain["ranks"][0]["finished"]["what"] == "copy_to_worker_0"
    assert plain["ranks"][0]["current"] is None
    assert plain["ranks"][3]["state"] == "stopped"
    assert "flight" not in plain["ranks"][0]

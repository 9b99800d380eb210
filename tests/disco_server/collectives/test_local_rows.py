"""Rows between threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from disco_server.collectives.header_exchange import LocalLane, LocalRows
from disco_server.collectives.preflight import ROW_BYTES
from disco_server.collectives.types import UnavailableError


def test_rounds_bring_rows_data_and_texts():
    """Each thread sees all rows and the data behind them, in rounds one after the other."""
    lane = LocalLane(3)

    def run(index: int) -> list[object]:
        rows = LocalRows(lane, index)
        place = rows.find_place(np.dtype(np.int64), 2)
        seen: list[object] = []
        for number in range(200):
            rows.put(place, np.array([number, index]))
            heads = rows.meet(bytes([index]) * ROW_BYTES + place.rider)
            data = np.concatenate(rows.parts(place)).tolist()
            seen.append((list(heads[::ROW_BYTES]), data))
        seen.append(rows.tell(f"from {index}"))
        return seen

    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(run, range(3)))

    for index, (*rounds, texts) in enumerate(answers):
        assert rounds == [([0, 1, 2], [n, 0, n, 1, n, 2]) for n in range(200)]
        assert texts == [f"from {each}" for each in range(3) if each != index]


def test_a_token_waits_for_nobody():
    """Posting returns at once, and the round is complete when the last has posted."""
    lane = LocalLane(2)
    first, second = LocalRows(lane, 0), LocalRows(lane, 1)

    first.start(bytes(ROW_BYTES))
    assert not first.test()
    assert first.absent() == [1]

    second.start(bytes(ROW_BYTES))
    assert first.test()
    assert second.test()
    assert first.absent() == second.absent() == []


def test_a_closed_lane_takes_no_rows():
    """Whoever posts or looks after the end is told so."""
    lane = LocalLane(2)
    rows = LocalRows(lane, 0)
    rows.start(bytes(ROW_BYTES))
    lane.close()

    for act in (rows.test, lambda: rows.start(bytes(ROW_BYTES))):
        with pytest.raises(UnavailableError, match="session ended"):
            act()

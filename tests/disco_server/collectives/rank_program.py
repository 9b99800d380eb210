"""One rank: executes scenarios by name until its input ends, then leaves in order."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import scenarios
import scenarios_exchange
import scenarios_parts
import scenarios_tags
import scenarios_teams

from disco_server.collectives.mpi import MpiGroups

HOMES = (scenarios, scenarios_exchange, scenarios_parts, scenarios_tags, scenarios_teams)


def main() -> None:
    rank, size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
    # The first owns MPI and closes last; the second shares the world with it.
    flat = MpiGroups.create(rank, size)
    grouped = MpiGroups(rank, size, 2 if size % 2 == 0 else 1, flat._mpi, flat._library)
    place = scenarios.Place(rank, flat, grouped)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            home = next(each for each in HOMES if hasattr(each, name))
            answer = ["", getattr(home, name)(place, **arguments)]
        except Exception:  # noqa: BLE001 - the test shows whatever it was
            answer = [traceback.format_exc()]
        print(json.dumps(answer), flush=True)
    grouped.close()
    flat.close()
    flat.close()


if __name__ == "__main__":
    main()

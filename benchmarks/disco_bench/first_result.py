"""The first script of somebody with Disco, for the section ``peers``.

``WORKERS [ADDRESS]``: prints how many workers have answered, of the cluster at the address or of a
ProcessSession.
"""

from __future__ import annotations

import sys

from disco_client import ProcessSession, connect

__all__ = ["main"]


def main() -> None:
    """Does what the command line says."""
    workers, *address = sys.argv[1:]
    count = int(workers)
    with connect(address[0], num_workers=count) if address else ProcessSession(count) as session:
        answers = session.get_global_func("numpy.add")(1, 2).get_all()
        print(len(answers), flush=True)


if __name__ == "__main__":
    main()

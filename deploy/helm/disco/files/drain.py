"""Waits until no session uses a daemon: for how many seconds, and the URL of its HTTP port.

The word "cordon" may follow: a worker daemon is told to take no new sessions first.
"""

import os
import re
import signal
import ssl
import sys
import time
import urllib.request
from pathlib import Path

# A controller's sessions by state, or a worker daemon's.
SESSIONS = re.compile(r"^disco_(?:node_)?sessions(?:\{.*\})? (\S+)$", re.MULTILINE)
LISTENING = "0A"  # in the tables of /proc/net


def target(link: Path) -> str:
    """What a descriptor is of; nothing where it is closed by now, or another user's."""
    try:
        return str(link.readlink())
    except OSError:
        return ""


def descriptors(process: Path) -> list[Path]:
    """Those of a process; none where it has ended by now, or is another user's."""
    try:
        return list((process / "fd").iterdir())
    except OSError:
        return []


def listeners(port: int) -> list[int]:
    """The processes that listen at a port, as far as they are of this user.

    Where the containers of a pod share their processes, the first of them is in none of them.
    """
    sockets: set[str] = set()
    for table in Path("/proc/net").glob("tcp*"):
        for line in table.read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == LISTENING and int(local.rpartition(":")[2], 16) == port:
                sockets.add(f"socket:[{rest[5]}]")
    return [
        int(process.name)
        for process in Path("/proc").glob("[0-9]*")
        if any(target(each) in sockets for each in descriptors(process))
    ]


# It is this pod's own port, under a name that need not be in the certificate.
trusting = ssl.create_default_context()
trusting.check_hostname = False
trusting.verify_mode = ssl.CERT_NONE

seconds, url, *cordon = sys.argv[1:]
if cordon:
    daemons = listeners(int(url.rpartition(":")[2]))
    if not daemons:
        sys.exit(f"expected a daemon of this user that listens at {url}, found none")
    for pid in daemons:
        os.kill(pid, signal.SIGUSR1)
end = time.monotonic() + float(seconds)
while time.monotonic() < end:
    with urllib.request.urlopen(f"{url}/metrics", timeout=5, context=trusting) as answer:
        if not sum(map(float, SESSIONS.findall(answer.read().decode()))):
            break
    time.sleep(1)

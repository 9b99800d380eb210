"""Waits until no session uses a daemon: for how many seconds, and the URL of its HTTP port.

A worker daemon's process id may follow: it is told to take no new sessions first.
"""

import os
import re
import signal
import ssl
import sys
import time
import urllib.request

# A controller's sessions by state, or a worker daemon's.
SESSIONS = re.compile(r"^disco_(?:node_)?sessions(?:\{.*\})? (\S+)$", re.MULTILINE)

# It is this pod's own port, under a name that need not be in the certificate.
trusting = ssl.create_default_context()
trusting.check_hostname = False
trusting.verify_mode = ssl.CERT_NONE

seconds, url, *pids = sys.argv[1:]
for pid in pids:
    os.kill(int(pid), signal.SIGUSR1)
end = time.monotonic() + float(seconds)
while time.monotonic() < end:
    with urllib.request.urlopen(f"{url}/metrics", timeout=5, context=trusting) as answer:
        if not sum(map(float, SESSIONS.findall(answer.read().decode()))):
            break
    time.sleep(1)

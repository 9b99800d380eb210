"""Holds how much of the client's interface a type checker knows; exit code 1 below the bound."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

LEAST = 0.98


def main() -> int:
    """Asks pyright about the installed client."""
    scripts = Path(sys.executable).parent
    # By these it finds the environment in which the client is installed.
    environ = os.environ | {
        "VIRTUAL_ENV": str(scripts.parent),
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
    }
    command = [scripts / "pyright", "--verifytypes", "disco_client", "--ignoreexternal"]
    done = subprocess.run(
        [*command, "--outputjson"], env=environ, capture_output=True, text=True, check=False
    )
    found = json.loads(done.stdout)["typeCompleteness"]
    score = found["completenessScore"]
    print(f"disco_client: {score:.1%} of the interface has known types, at least {LEAST:.0%}")
    if score >= LEAST:
        return 0
    for symbol in found["symbols"]:
        if symbol["isExported"] and not symbol["isTypeKnown"]:
            print(symbol["name"], file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

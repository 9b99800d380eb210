"""Writes ``docs/settings.md`` from the tables of settings; run by ``make settings``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from disco_server.config import ControllerConfig, DaemonConfig, WorkerConfig
from disco_server.settings import RANK_VARIABLES, Setting

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"

_HEAD = """\
# Settings of the daemons

`make settings` writes this page from the tables in the code.

A setting comes from the option of the command, else from the variable of the environment, else
from the TOML file that `--config` or `DISCO_CONFIG` names, in its table `[controller]` or
`[worker]`, else it has its default. Lists are written with commas in a variable, and as lists in a
file. Durations are in seconds.
"""
_VARIABLES = """\
## Variables

Ranks have these from the environment of their worker daemon. An empty one counts as absent.

| variable | default | what it says |
|---|---|---|
"""
_CLIENT = """
A client program reads `DISCO_ADDRESS`, `DISCO_TLS_CA`, `DISCO_TLS_CERT`, `DISCO_TLS_KEY`,
`DISCO_TOKEN` and `DISCO_TOKEN_FILE` where `connect()` is not told otherwise
([cluster.md](cluster.md)), or else what `DISCO_CONTEXT` names in the file `DISCO_CONTEXTS`
([cli.md](cli.md#disco-context)), `DISCO_HANG_REPORT_S` ([reliability.md](reliability.md)),
`DISCO_TRACEBACK` ([errors.md](errors.md)), and `DISCO_DEBUG`, which for a session of
its own means that of its ranks too, and checks rules of threads ([threads.md](threads.md)).
The command `disco` has `DISCO_VERBOSE` besides ([cli.md](cli.md)).
Clusters on Slurm have their files below `DISCO_JOB_DIR` ([slurm.md](slurm.md)).
Each rank is told `DISCO_WORKER_ID` and `DISCO_NUM_WORKERS`.
"""


def _table(title: str, rows: Iterable[Setting]) -> str:
    lines = [
        f"## {title}\n",
        "| in a file | option | variable | default | what it says |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        option = f"`{row.option}`" if row.option else ""
        text = row.text.replace("|", "\\|")
        lines.append(f"| `{row.name}` | {option} | `{row.variable}` | {row.default} | {text} |")
    return "\n".join([*lines, ""])


def page() -> str:
    """The text of the page."""
    shared = DaemonConfig.table()
    parts = [_HEAD]
    for title, kind in (("The controller", ControllerConfig), ("A worker daemon", WorkerConfig)):
        parts.append(_table(title, (r for n, r in kind.table().items() if n not in shared)))
    parts.append(_table("Both", shared.values()))
    rows = (f"| `{v.name}` | {_shown(v.default)} | {v.text} |\n" for v in RANK_VARIABLES)
    return "\n".join([*parts, _VARIABLES + "".join(rows) + _CLIENT])


def _shown(default: object) -> str:
    return f"{default:g}" if isinstance(default, float) else ""


if __name__ == "__main__":
    PAGE.write_text(page())

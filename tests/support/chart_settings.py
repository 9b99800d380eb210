"""Writes the settings in the chart's ``values.schema.json`` from the tables of settings.

``make settings`` runs it. The rest of the schema is kept as it stands.
"""

from __future__ import annotations

import json
from pathlib import Path

from disco_server.config import ControllerConfig, DaemonConfig, WorkerConfig

SCHEMA = Path(__file__).parents[2] / "deploy" / "helm" / "disco" / "values.schema.json"

_OF_THE_CHART = {
    *("listen", "http", "http_link_file", "port_file", "frames_port", "insecure", "quota_file"),
    *("kubernetes_account", "controller", "name", "array_listen", "work_dir", "user", "once"),
    *("tls_cert", "tls_key", "tls_ca", "require_client_cert", "auth_token_file"),
}
"""What the chart's templates set, so that values may not."""

_KINDS: dict[str, type[DaemonConfig]] = {"controller": ControllerConfig, "workers": WorkerConfig}


def schema() -> str:
    """The text of the schema."""
    whole = json.loads(SCHEMA.read_text())
    for role, kind in _KINDS.items():
        whole["properties"][role]["properties"]["settings"]["properties"] = {
            name: {"description": row.text, "$ref": "#/$defs/setting"}
            for name, row in kind.table().items()
            if name not in _OF_THE_CHART
        }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(schema())

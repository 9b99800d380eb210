"""The published schemas of kinds that are no part of Kubernetes, and how they are brought here.

A CustomResourceDefinition is what an API server checks objects by. As a program::

    python tests/support/deploying/crds.py FILE --version v1beta2 --origin 'PROJECT TAG: PATH'

it writes the schema of a definition's file to ``tests/deploy/schemas/KIND.json``: as JSON Schema,
strict about names that are not in it, which a server would drop, and without descriptions and
status. Rules in CEL are left out, since nothing here can evaluate them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import yaml

__all__ = ["SCHEMAS", "schema_of"]

SCHEMAS = Path(__file__).parents[2] / "deploy" / "schemas"
_UNSTRUCTURED = "x-kubernetes-preserve-unknown-fields"
_LICENCE = "Apache License 2.0"


def schema_of(definition: dict[str, Any], version: str, origin: str) -> dict[str, Any]:
    """The JSON Schema of the objects of one version of a definition."""
    spec = definition["spec"]
    (found,) = (each for each in spec["versions"] if each["name"] == version)
    if not found["served"]:
        raise ValueError(f"{spec['names']['kind']} {version} is not served")
    made = _strict(found["schema"]["openAPIV3Schema"])
    properties = made["properties"]
    properties.pop("status", None)
    properties["apiVersion"] = {"const": f"{spec['group']}/{version}"}
    properties["kind"] = {"const": spec["names"]["kind"]}
    properties["metadata"] = {"type": "object", "required": ["name"]}
    made["required"] = sorted({*made.get("required", ()), "apiVersion", "kind", "metadata"})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": f"From {origin}; {_LICENCE}; by tests/support/deploying/crds.py.",
        **made,
    }


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    """What a definition says of a value, in JSON Schema's own words."""
    made: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "properties":
            made[name] = {key: _strict(inner) for key, inner in value.items()}
        elif name in ("items", "additionalProperties", "not") and isinstance(value, dict):
            made[name] = _strict(value)
        elif name in ("allOf", "anyOf", "oneOf"):
            made[name] = [_strict(inner) for inner in value]
        elif name not in ("description", "nullable") and not name.startswith("x-kubernetes-"):
            made[name] = value
    if schema.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
        made.pop("anyOf", None)  # says the same
    closed = "properties" in schema and "additionalProperties" not in schema
    if closed and "type" in schema and not schema.get(_UNSTRUCTURED):
        made["additionalProperties"] = False
    if schema.get("nullable"):
        made["type"] = [made["type"], "null"]
    return made


def main() -> None:
    """Writes one schema."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--version", required=True)
    parser.add_argument("--origin", required=True)
    options = parser.parse_args()
    definition = yaml.safe_load(options.file.read_text(encoding="utf-8"))
    made = schema_of(definition, options.version, options.origin)
    file = SCHEMAS / f"{made['properties']['kind']['const']}.json"
    file.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(file)


if __name__ == "__main__":
    main()

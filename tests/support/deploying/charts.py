"""The chart as Helm's own engine renders it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

__all__ = [
    "CHART",
    "DEPLOY",
    "EXAMPLES",
    "Manifest",
    "containers",
    "of_kind",
    "pod_of",
    "render",
    "values_of",
    "variants",
]

DEPLOY = Path(__file__).parents[3] / "deploy"
CHART = DEPLOY / "helm" / "disco"
EXAMPLES = DEPLOY / "kubernetes"
EXAMPLE = "example-"
NAMESPACE = "ml"

Manifest = dict[str, Any]


def values_of(name: str) -> dict[str, Any]:
    """The values of one of the files in ci/, or of an example, which names no certificates."""
    file = CHART / "ci" / f"{name}-values.yaml"
    if file.exists():
        return yaml.safe_load(file.read_text())
    example = yaml.safe_load((EXAMPLES / f"{name.removeprefix(EXAMPLE)}-values.yaml").read_text())
    return {"tls": values_of("secrets")["tls"], **example}


def variants() -> list[str]:
    """What `values_of` takes: the files in ci/, and the examples."""
    own = (file.name.removesuffix("-values.yaml") for file in CHART.glob("ci/*.yaml"))
    examples = (file.name.removesuffix("-values.yaml") for file in EXAMPLES.glob("*-values.yaml"))
    return sorted([*own, *(EXAMPLE + name for name in examples)])


def render(values: Mapping[str, Any], name: str = "disco") -> list[Manifest]:
    """All objects that an installation with these values makes, its test among them."""
    from helm_python import Chart

    with Chart.load(CHART) as chart:
        files = chart.render(dict(values), name=name, namespace=NAMESPACE)
    texts = [text for file, text in sorted(files.items()) if not file.endswith(".txt")]
    return [made for text in texts for made in yaml.safe_load_all(text) if made]


def of_kind(manifests: list[Manifest], kind: str, suffix: str = "") -> Manifest:
    """The only object of a kind whose name ends so."""
    (found,) = (
        made
        for made in manifests
        if made["kind"] == kind and made["metadata"]["name"].endswith(suffix)
    )
    return found


def pod_of(made: Manifest) -> Manifest | None:
    """The template of the pods that an object makes, or the pod that it is."""
    if made["kind"] == "Pod":
        return made
    spec = made.get("spec", {})
    return spec.get("template") or spec.get("leaderWorkerTemplate", {}).get("workerTemplate")


def containers(manifests: list[Manifest]) -> Iterator[Manifest]:
    """All containers of all pods."""
    for made in manifests:
        if pod := pod_of(made):
            yield from pod["spec"]["containers"]

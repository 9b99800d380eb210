"""As much of a Kubernetes API server as Helm and the controller need: it stores what it is told."""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import yaml

__all__ = ["ApiServer", "api_server"]

KINDS: Mapping[str, Mapping[str, str]] = {
    "v1": {
        "ConfigMap": "configmaps",
        "Pod": "pods",
        "Secret": "secrets",
        "Service": "services",
        "ServiceAccount": "serviceaccounts",
    },
    "apps/v1": {"Deployment": "deployments", "StatefulSet": "statefulsets"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "networking.k8s.io/v1": {"NetworkPolicy": "networkpolicies"},
    "cert-manager.io/v1": {"Certificate": "certificates"},
    "rbac.authorization.k8s.io/v1": {"Role": "roles", "RoleBinding": "rolebindings"},
    "monitoring.coreos.com/v1": {
        "PrometheusRule": "prometheusrules",
        "ServiceMonitor": "servicemonitors",
    },
    "leaderworkerset.x-k8s.io/v1": {"LeaderWorkerSet": "leaderworkersets"},
}
"""What there is, all of it in namespaces: plural names by kind, by the version of their API."""

_OBJECT = re.compile(
    r"/(?:api|apis)/(?P<api>.+?)/namespaces/[^/]+/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?"
)


class ApiServer(ThreadingHTTPServer):
    """A server on a free port of the loopback address.

    Args:
        secrets: How connections are encrypted; None for not at all.

    Attributes:
        objects: What is stored, by kind and name.
        refused: Requests that it did not understand, which a test must not bring about.
        token: What callers must show to change something; empty for nothing.
        asked: The verb, the group and the plural name of each change that was asked for.
    """

    daemon_threads = True

    def __init__(self, secrets: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.refused: list[str] = []
        self.token = ""
        self.asked: list[tuple[str, str, str]] = []
        self._version = 0
        self._scheme = "http"
        if secrets is not None:
            self._scheme = "https"
            # A handshake takes place in the thread of its connection, when that first reads.
            self.socket = secrets.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )

    @property
    def url(self) -> str:
        """Where it is."""
        return f"{self._scheme}://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """A client that has seen enough goes without a word."""

    def store(self, made: dict[str, Any], old: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Keeps an object, with what a server adds to it; pods have run at once."""
        self._version += 1
        facts = made["metadata"]
        facts["resourceVersion"] = str(self._version)
        facts["uid"] = old["metadata"]["uid"] if old else f"uid-{self._version}"
        facts.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        facts.setdefault("namespace", "ml")
        if made["kind"] == "Pod":
            made["status"] = {"phase": "Succeeded"}
        self.objects[made["kind"], facts["name"]] = made
        return made


class _Handler(BaseHTTPRequestHandler):
    server: ApiServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in one piece: in two, each would wait for the client's ACK

    def log_message(self, *_: object) -> None:
        """Keeps the test's output short."""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path.rstrip("/")
        if (answer := _discovery(path)) is not None:
            self._answer(200, answer)
            return
        kind, name, found = self._find()
        if name:
            self._answer(200, found) if found else self._fail(404, "NotFound")
        elif kind and "watch=" in self.path:
            self._watch(kind)
        elif kind:
            self._answer(200, self._list(kind))

    def do_PATCH(self) -> None:
        """Applies what a client wants to be so; one that owns all fields replaces them."""
        if "merge-patch" in self.headers["Content-Type"]:
            self._merge()
            return
        if "apply-patch" not in self.headers["Content-Type"]:
            self._body()
            self.server.refused.append(f"PATCH of {self.headers['Content-Type']}")
            self._fail(415, "UnsupportedMediaType")
            return
        kind, _, found = self._find()
        made = self._body()
        if kind:
            self._answer(200, self.server.store(made, found))

    def _merge(self) -> None:
        """Changes annotations of an object by a JSON Merge Patch, which may hold nothing else."""
        kind, _, found = self._find()
        patch = self._body()
        if not kind:
            return
        parts = _OBJECT.fullmatch(urlsplit(self.path).path)
        assert parts is not None
        group = parts["api"].rpartition("/")[0]
        self.server.asked.append(("patch", group, parts["plural"]))
        if self.server.token and self.headers["Authorization"] != f"Bearer {self.server.token}":
            self._fail(401, "Unauthorized")
        elif found is None:
            self._fail(404, "NotFound")
        elif patch.keys() != {"metadata"} or patch["metadata"].keys() != {"annotations"}:
            self.server.refused.append(f"PATCH {patch}")
            self._fail(422, "Invalid")
        else:
            annotations = found["metadata"].setdefault("annotations", {})
            for name, value in patch["metadata"]["annotations"].items():
                annotations[name] = value
                if value is None:
                    del annotations[name]
            self._answer(200, self.server.store(found, found))

    def do_DELETE(self) -> None:
        kind, name, found = self._find()
        self._body()
        if found:
            del self.server.objects[kind, name]
            self._answer(200, found)
        elif kind:
            self._fail(404, "NotFound")

    def _find(self) -> tuple[str, str, dict[str, Any] | None]:
        """The kind, the name and the object that a path means; no kind for none that is known."""
        parts = _OBJECT.fullmatch(urlsplit(self.path).path)
        plurals = KINDS.get(parts["api"], {}) if parts else {}
        kind = next((k for k, v in plurals.items() if parts and v == parts["plural"]), "")
        if not parts or not kind:
            self.server.refused.append(f"{self.command} {self.path}")
            self._fail(404, "NotFound")
            return "", "", None
        name = parts["name"] or ""
        return kind, name, self.server.objects.get((kind, name))

    def _list(self, kind: str) -> dict[str, Any]:
        items = [made for (of, _), made in self.server.objects.items() if of == kind]
        return {"kind": f"{kind}List", "apiVersion": "v1", "metadata": {}, "items": items}

    def _watch(self, kind: str) -> None:
        """Tells what there is, and that this was all; whoever wants more asks again."""
        events = [{"type": "ADDED", "object": made} for made in self._list(kind)["items"]]
        facts = {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}
        end = {"kind": kind, "apiVersion": "v1", "metadata": facts}
        self._answer(200, *events, {"type": "BOOKMARK", "object": end})

    def _body(self) -> Any:
        return yaml.safe_load(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def _fail(self, code: int, reason: str) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {}}
        self._answer(code, {**status, "reason": reason, "code": code, "message": reason})

    def _answer(self, code: int, *contents: object) -> None:
        raw = "\n".join(map(json.dumps, contents)).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


def _discovery(path: str) -> object | None:
    """What it says of itself; None for a path that is no such question."""
    if path == "/version":
        return {"major": "1", "minor": "37", "gitVersion": "v1.37.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/openapi/v3":
        where = {api: f"/openapi/v3/{_root(api)}" for api in KINDS}
        return {"paths": {_root(api): {"serverRelativeURL": url} for api, url in where.items()}}
    if path.startswith("/openapi/v3/"):
        return _openapi(path.removeprefix("/openapi/v3/"))
    if path == "/apis":
        groups = []
        for api in KINDS:
            group, _, version = api.rpartition("/")
            entry = {"groupVersion": api, "version": version}
            if group:
                groups.append({"name": group, "versions": [entry], "preferredVersion": entry})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    api = path.removeprefix("/apis/").removeprefix("/api/")
    if api not in KINDS:
        return None
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": api,
        "resources": [
            {
                "name": plural,
                "singularName": kind.lower(),
                "namespaced": True,
                "kind": kind,
                "verbs": verbs,
            }
            for kind, plural in KINDS[api].items()
        ],
    }


def _root(api: str) -> str:
    return f"apis/{api}" if "/" in api else f"api/{api}"


def _openapi(root: str) -> object:
    """Says of each kind that the server itself validates its fields."""
    api = root.partition("/")[2]
    group, _, version = api.rpartition("/")
    paths = {
        f"/{root}/namespaces/{{namespace}}/{plural}/{{name}}": {
            "patch": {
                "x-kubernetes-group-version-kind": {
                    "group": group,
                    "version": version,
                    "kind": kind,
                },
                "parameters": [{"name": "fieldValidation", "in": "query"}],
                "responses": {},
            }
        }
        for kind, plural in KINDS[api].items()
    }
    return {"openapi": "3.0.0", "info": {"title": api, "version": version}, "paths": paths}


@contextmanager
def api_server(secrets: ssl.SSLContext | None = None) -> Iterator[ApiServer]:
    """Runs one meanwhile, encrypted as some secrets say."""
    with ApiServer(secrets) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        try:
            yield server
        finally:
            server.shutdown()
            serving.join()

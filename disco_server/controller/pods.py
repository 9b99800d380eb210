"""In Kubernetes, asks for the pods of nodes with ranks to stay where others may go.

A ReplicaSet that is to have fewer pods ends those first whose deletion cost is least. A worker
daemon's pod has its node's name, so the controller, which knows where ranks are, sets that cost
while a node has ranks and takes it back afterwards. The worker's own pod could not be let to do
it: whoever may change one pod of a namespace may change all, and ranks run code of sessions.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from disco_client.backoff import Backoff
from disco_client.errors import ConfigError
from disco_client.output import logger_of
from disco_server.settings import Address

if TYPE_CHECKING:
    from aiohttp import ClientSession

    from disco_server.controller.hub import Hub

__all__ = ["COST", "DELETION_COST", "PodsApi", "keep_pods"]

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""The annotation that a ReplicaSet compares; without it a pod's cost is 0."""

COST = "1"
"""Of a node with ranks. How many they are makes no difference, so that a pod is changed only when
its first rank comes and when its last one goes."""

_LOOK_S = 0.5
_REQUEST_S = 10.0
_RETRY_S = 10.0
_AT_ONCE = 8
"""How many requests are under way at a time."""

_GONE = 404
_OK = 200
_DENIED = (401, 403)

_logger = logger_of("disco.pods")


@dataclass(frozen=True, slots=True)
class PodsApi:
    """The pods of this pod's namespace, at the API server of its cluster.

    Attributes:
        url: Of the pods.
        account: The folder of the service account; its token is replaced while we run.
        secrets: What verifies the server.
    """

    url: str
    account: Path
    secrets: ssl.SSLContext

    @classmethod
    def of_account(cls, account: Path) -> Self:
        """Finds the server as a pod does, by two variables and the files of its service account.

        Raises:
            ConfigError: This is no pod, or the account has no such files.
        """
        host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "")
        if not host or not port:
            raise ConfigError(
                "kubernetes_account: expected to run in a pod, where KUBERNETES_SERVICE_HOST and "
                "KUBERNETES_SERVICE_PORT are set, and they are not"
            )
        try:
            namespace = (account / "namespace").read_text(encoding="utf-8").strip()
            secrets = ssl.create_default_context(cafile=str(account / "ca.crt"))
            (account / "token").read_bytes()
        except OSError as error:
            raise ConfigError(
                f"kubernetes_account: expected a folder with token, ca.crt and namespace, and "
                f"{error.filename or account / 'ca.crt'} cannot be read: {error.strerror or error}"
            ) from None
        server = f"https://{Address(host, int(port))}"
        return cls(f"{server}/api/v1/namespaces/{quote(namespace, safe='')}/pods", account, secrets)

    async def set_cost(self, session: ClientSession, pod: str, cost: str | None) -> None:
        """Sets the deletion cost of a pod, or takes it away; a pod that is not there has none.

        Raises:
            OSError: The server cannot be reached, or refuses.
        """
        token = (self.account / "token").read_text(encoding="utf-8").strip()
        async with session.patch(
            f"{self.url}/{quote(pod, safe='')}",
            json={"metadata": {"annotations": {DELETION_COST: cost}}},
            headers={
                "Authorization": f"Bearer {token}",
                "Content-Type": "application/merge-patch+json",
            },
            ssl=self.secrets,
        ) as answer:
            if answer.status in (_OK, _GONE):
                return
            go_on = (
                "; the controller's service account needs the verb patch for pods"
                if answer.status in _DENIED
                else ""
            )
            raise OSError(f"the API server answers {answer.status} {answer.reason}{go_on}")


async def keep_pods(hub: Hub, api: PodsApi) -> None:
    """Lets the pods of nodes with ranks cost more than others, until it is cancelled."""
    import aiohttp  # takes a quarter of a second, which a controller elsewhere saves

    told: dict[str, str | None] = {}
    backoff = Backoff(_LOOK_S, _RETRY_S)
    refused = ""
    limit = aiohttp.ClientTimeout(total=_REQUEST_S)
    connector = aiohttp.TCPConnector(limit=_AT_ONCE)
    async with aiohttp.ClientSession(connector=connector, timeout=limit) as session:
        while True:
            pause = _LOOK_S
            try:
                await _tell(hub, api, session, told)
            except (OSError, ValueError, aiohttp.ClientError) as error:
                pause = backoff.pause()
                reason = str(error) or f"no answer within {_REQUEST_S:g} s"
                if reason != refused:
                    _logger.warning("cannot ask for pods to stay, and tries again: %s", reason)
                refused = reason
            else:
                backoff.reset()
                refused = ""
            await asyncio.sleep(pause)


async def _tell(
    hub: Hub, api: PodsApi, session: ClientSession, told: dict[str, str | None]
) -> None:
    """Sets what differs from what was told; of nodes that came lately nothing was.

    Raises:
        OSError: Some of it could not be set; the rest was.
    """
    wanted = {
        name: COST if node.taken else None for name, node in hub.cluster.members.nodes.items()
    }
    for name in told.keys() - wanted.keys():
        del told[name]  # its next pod starts without

    async def tell(name: str, cost: str | None) -> None:
        await api.set_cost(session, name, cost)
        told[name] = cost

    unknown: Any = object()
    changed = [(name, cost) for name, cost in wanted.items() if told.get(name, unknown) != cost]
    results = await asyncio.gather(*(tell(*each) for each in changed), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result

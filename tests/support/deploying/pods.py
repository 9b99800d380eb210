"""Pods on this machine: namespaces that a first process holds, as a kubelet makes them."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

import psutil

from fault_tools.namespaces import Host, Network

__all__ = ["Pod", "Pods", "pods"]

_PAUSE = "trap exit TERM; mount -t tmpfs shm /dev/shm; echo ready; sleep infinity & wait"


class Pod:
    """A network, a host name, memory to share and processes of its own.

    As with ``shareProcessNamespace``, its first process is none of its containers', and collects
    what those leave behind.

    Args:
        host: Its network.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        apart = ("unshare", "--ipc", "--pid", "--kill-child", "--mount-proc")
        self._outside = subprocess.Popen(
            [*host.within, *apart, "bash", "-e", "-c", _PAUSE],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._outside.stdout is not None
        if self._outside.stdout.readline() != "ready\n":
            raise RuntimeError(f"{host.name}: its first process ended: {self._outside.wait()}")
        (self._pause,) = psutil.Process(self._outside.pid).children()

    @property
    def within(self) -> tuple[str, ...]:
        """What stands before a command to run it there, as a child of what stands there."""
        target = ("nsenter", "--target", str(self._pause.pid))
        return (*target, "--net", "--uts", "--ipc", "--mount", "--pid", "--")

    def run(self, *command: str, seconds: float) -> str:
        """Runs a command in it, as ``kubectl exec`` does, and returns what it wrote.

        Raises:
            AssertionError: It failed; the text has its complaint.
        """
        done = subprocess.run(
            [*self.within, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def end(self) -> None:
        """Ends all that is left in it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._pause.terminate()  # and with the first process of a namespace end all of it
        self._outside.wait()
        if self._outside.stdout is not None:
            self._outside.stdout.close()


class Pods:
    """Starts and ends them.

    Args:
        joined: Their network.
    """

    def __init__(self, joined: Network) -> None:
        self._network = joined
        self._running: list[Pod] = []

    def start(self, name: str, domain: str) -> Pod:
        """Starts one, under its name in a domain, at a new address."""
        pod = Pod(self._network.join(name, f"{name}.{domain}"))
        self._running.append(pod)
        return pod

    def end(self, pod: Pod) -> None:
        """Ends one; its address is not used again."""
        self._running.remove(pod)
        pod.end()
        self._network.leave(pod.host)

    def close(self) -> None:
        """Ends all."""
        for pod in list(self._running):
            self.end(pod)


@contextlib.contextmanager
def pods(joined: Network) -> Iterator[Pods]:
    """Starts and ends pods for the length of a block; then none is left."""
    made = Pods(joined)
    try:
        yield made
    finally:
        made.close()

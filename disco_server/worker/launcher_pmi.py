"""The PMI-1 connection that an MPI launcher gave this process, for the rank that it starts.

``mpiexec`` of the MPICH family and ``srun --mpi=pmi2`` give each process that they start a
socket, ``PMI_FD``, on which they answer in MPICH's start-up protocol. A process of ``disco run``
meets the others by it: the first one puts there where it listens. Then it passes on what the MPI
library of its rank asks, so that the rank's world is the launcher's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import MutableMapping
from functools import partial
from typing import Self

from disco_client.errors import ConfigError, ConnectionFailed
from disco_server.core.pmi import MAX_LINE
from disco_server.worker.rank_handle import RankHandle

__all__ = ["LauncherPmi"]

_VARIABLES = ("PMI_FD", "PMI_RANK", "PMI_SIZE")
_KEY = "disco"
_PART = 512
"""How much is put under one key: Slurm takes 1024 bytes, the name and its own words included."""

_GOODBYE_S = 5.0
_VALUE = re.compile(r" (\w+)=(\S*)")


class LauncherPmi:
    """What a launcher's process manager tells this process; used by one thread.

    A context manager, whose end says goodbye, unless an exception ends it: launchers end all
    processes when one of them leaves without.

    Args:
        sock: The socket to it; closed here.
        rank: The number of this process.
        size: How many there are.

    Attributes:
        rank: The number of this process, from 0 up.
        size: How many there are.
        kvsname: The key-value space, after which MPICH names its shared memory.

    Raises:
        ConnectionFailed: Nobody answers there, or what answers speaks something else.
    """

    def __init__(self, sock: socket.socket, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._sock = sock
        self._rest = b""
        self._greeting = self._ask("init", pmi_version=1, pmi_subversion=1)
        self.kvsname = self._value(self._ask("get_my_kvsname"), "kvsname")

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> Self | None:
        """The connection that an environment names, whose variables go; None where there is none.

        They go because an MPI that this process, or a program that it runs, started by itself
        would speak on the same socket.

        Raises:
            ConfigError: The variables are not a launcher's.
            ConnectionFailed: As above.
        """
        given = [environ.get(name, "") for name in _VARIABLES]
        if not all(given):
            return None
        for name in _VARIABLES:
            del environ[name]
        try:
            fd, rank, size = map(int, given)
            sock = socket.socket(fileno=fd)
        except (ValueError, OSError) as error:
            pairs = zip(_VARIABLES, given, strict=True)
            shown = ", ".join(f"{name}={text}" for name, text in pairs)
            msg = "expected the socket, the number and the count of processes of an MPI launcher"
            raise ConfigError(f"{msg}, got {shown}: {error}") from None
        os.set_inheritable(fd, False)
        sock.setblocking(True)
        try:
            return cls(sock, rank, size)
        except BaseException:
            sock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self.close()
        # Otherwise the end of this process tells it, when the error has been printed.

    @property
    def node_name(self) -> str:
        """The name of the node that this process is: its host, and its number."""
        return f"{socket.gethostname()}-{self.rank}"

    # Meeting the others -------------------------------------------------------------------

    def share(self, text: str) -> str:
        """Gives every process what the first one says; returns when all of them have called it.

        Args:
            text: What this process says, without blanks; only the first one is heard.

        Raises:
            ConnectionFailed: The launcher is gone.
        """
        parts = [text[at : at + _PART] for at in range(0, len(text), _PART)]
        if self.rank == 0:
            self._put("", str(len(parts)))
            for at, part in enumerate(parts):
                self._put(f".{at}", part)
        self._ask("barrier_in")
        if self.rank == 0:
            return text
        return "".join(self._get(f".{at}") for at in range(int(self._get(""))))

    def _put(self, key: str, value: str) -> None:
        self._ask("put", kvsname=self.kvsname, key=_KEY + key, value=value)

    def _get(self, key: str) -> str:
        return self._value(self._ask("get", kvsname=self.kvsname, key=_KEY + key), "value")

    def _ask(self, command: str, **fields: object) -> bytes:
        """Asks something; the answer's line."""
        words = [f"cmd={command}", *(f"{name}={value}" for name, value in fields.items())]
        try:
            self._sock.sendall(f"{' '.join(words)}\n".encode())
            answer = self._line()
        except OSError as error:
            raise ConnectionFailed(f"the MPI launcher does not answer: {error}") from None
        if not answer.startswith(b"cmd=") or b" rc=-" in answer or b" rc=1" in answer:
            msg = f"expected an MPI launcher that knows PMI-1, which answers {command}: {answer!r}"
            raise ConnectionFailed(msg)
        return answer

    def _line(self) -> bytes:
        while b"\n" not in self._rest:
            data = self._sock.recv(MAX_LINE)
            if not data:
                raise ConnectionError("it has closed the connection")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line + b"\n"

    def _value(self, answer: bytes, name: str) -> str:
        found = dict(_VALUE.findall(answer.decode("utf-8", "replace")))
        if name not in found:
            raise ConnectionFailed(f"expected {name} of the MPI launcher, got {answer!r}")
        return found[name]

    # The rank -------------------------------------------------------------------------------

    def serve(self, rank: RankHandle) -> None:
        """Passes on what the MPI library of this process's rank asks, and what it is answered."""
        self._sock.setblocking(False)
        rank.serve_pmi(partial(self._asked, rank, bytearray()))
        asyncio.get_running_loop().add_reader(self._sock, partial(self._answered, rank))

    def _asked(self, rank: RankHandle, rest: bytearray) -> None:
        data = rank.read_pmi()
        if data is None:
            return
        if not data:
            self._leave(rank)
            return
        rest += data
        whole, end, left = bytes(rest).rpartition(b"\n")
        rest[:] = left
        for line in (whole + end).splitlines(keepends=True):
            self._pass_on(rank, line)

    def _pass_on(self, rank: RankHandle, line: bytes) -> None:
        command = line.split(None, 1)[0] if line.strip() else b""
        if command == b"cmd=init":  # this process has said it
            rank.send_pmi(self._greeting)
        elif command == b"cmd=finalize":  # this process will
            rank.send_pmi(b"cmd=finalize_ack rc=0\n")
        elif command == b"cmd=abort":
            # The launcher would kill everything, before the program has heard whose end it was.
            self._leave(rank)
        else:
            with contextlib.suppress(OSError):
                self._sock.send(line)

    def _answered(self, rank: RankHandle) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = self._sock.recv(MAX_LINE)
        if data:
            rank.send_pmi(data)
        else:
            self._leave(rank)

    def _leave(self, rank: RankHandle) -> None:
        rank.close_pmi()
        asyncio.get_running_loop().remove_reader(self._sock)

    # The end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Says goodbye, and closes the connection; idempotent."""
        if self._sock.fileno() < 0:
            return
        self._sock.settimeout(_GOODBYE_S)
        with contextlib.suppress(OSError):
            self._sock.sendall(b"cmd=finalize\n")
            while not self._line().startswith(b"cmd=finalize_ack"):
                pass  # the answer to what a rank that was killed had asked
        self._sock.close()

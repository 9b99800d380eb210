"""A rank's end of the socket to its daemon: batches in, replies out."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from disco_client.descriptors import Descriptor
from disco_client.pb import controller_pb2, node_pb2
from disco_client.wire.codec import EncodedEnvelope, EnvelopeKind, envelope
from disco_client.wire.framing import frame
from disco_server.ipc.framing import (
    FrameReader,
    ProgressPage,
    frame_of_progress,
    receive,
    send_all,
    send_with_fd,
)
from disco_server.rank.errors import brief
from disco_server.rank.port_arrays import ArrayPort
from disco_server.rank.signals import CallGuard, RankEnded

if TYPE_CHECKING:
    import socket

__all__ = ["DaemonGone", "RankPort"]


_LOOKS = 50
"""How often a rank polls for the next command before it sleeps, about 0.2 ms: a client that
requested its progress often continues at once, and a wake-up takes several times that."""


_PAUSE_S = 0.001


class DaemonGone(RankEnded):
    """The daemon closed the socket: this process has no more commands to execute."""


class RankPort:
    """Blocking; used by the rank's one thread.

    Args:
        sock: To the daemon, or to the client whose child this rank is.
        page: Where such a client reads this rank's progress.

    Attributes:
        guard: Keeps what handlers of signals raise out of the reading and sending of frames.
        porter: Carries the arrays that are too large for a command.
        session, worker: For which it sends.
    """

    def __init__(self, sock: socket.socket, page: ProgressPage | None = None) -> None:
        self.guard = CallGuard()
        self._sock = sock
        self._page = page
        self._sent = 0
        self._replies = 0
        self._reader = FrameReader()
        self._looker = select.poll()
        self._looker.register(sock, select.POLLIN)
        self._frames: deque[EncodedEnvelope | None] = deque()
        self.porter = ArrayPort(self)
        self._key: node_pb2.KeyAnswer | None = None
        self._questions = 0
        self.session = 0
        self.worker = 0
        self._answered = False

    @property
    def has_daemon(self) -> bool:
        """Whether this rank is one of a worker daemon, and not a child of its client."""
        return self._page is None

    @property
    def live(self) -> None:
        """None: the client is another process, and gets encoded answers."""
        return None

    def become(self, session: int, worker: int) -> None:
        """Sets the session and the rank for which it sends."""
        self.session, self.worker = session, worker

    # Envelopes ---------------------------------------------------------------------

    def next(self) -> EncodedEnvelope | None:
        """Waits for the next envelope; None when :meth:`say_progress` is requested.

        Raises:
            DaemonGone: The socket was closed.
        """
        while not self._frames:
            self.read()
        return self._frames.popleft()

    def wait(self, seconds: float) -> bool:
        """Waits for so long; whether there is an envelope, or the end, to read."""
        return bool(self._frames) or self._readable(seconds * 1000)

    def is_silent(self, seconds: float) -> bool:
        """Waits for so long; whether there is nothing to read. At first it waits as `next` does."""
        return not (self._frames or self._look_often() or self._readable(seconds * 1000))

    def _readable(self, milliseconds: float | None) -> bool:
        """Waits for so long, None without an end; whether there is something to read.

        What another thread raises in this one comes here, where nothing is half read: a wait is
        over only when there is something.
        """
        while True:
            try:
                return bool(self._looker.poll(milliseconds))
            except BaseException as error:  # noqa: BLE001  (whatever code of the session raises)
                self.guard.outside(error)

    def read(self) -> None:
        """Waits for frames, and hands them to who waits for them.

        Raises:
            DaemonGone: The socket was closed.
        """
        with self.guard:
            frames = self._receive()
            if frames is None:
                raise DaemonGone
            self._sort(frames)

    def _sort(self, frames: Iterable[bytes]) -> None:
        """Hands what came to who waits for it."""
        for raw in frames:
            if not raw:
                self._frames.append(None)
                continue
            received = EncodedEnvelope.FromString(raw)
            if received.kind in (EnvelopeKind.ARRAY_IN, EnvelopeKind.ARRAY_MORE):
                self.porter.told(received)
            elif received.kind == EnvelopeKind.ARRAY_BACK:
                self.porter.returned(received)
            elif received.kind == EnvelopeKind.KEY:
                self._key = node_pb2.KeyAnswer.FromString(received.payload)
            else:
                self._frames.append(received)

    def take_descriptor(self) -> Descriptor | None:
        """The next descriptor that has come; None for one that was lost on its way."""
        return self._reader.fds.popleft()

    def _look_often(self) -> bool:
        """Polls for a moment where a request was just answered; whether there is one to read."""
        looks, self._answered = _LOOKS if self._answered else 0, False
        while looks and not self._readable(0):
            looks -= 1
            os.sched_yield()
        return looks > 0

    def _receive(self) -> deque[bytes] | None:
        """Waits for frames; where a request was just answered, it polls at first."""
        if not self._look_often():
            self._readable(None)
        while True:
            try:
                return receive(self._sock, self._reader)
            except BlockingIOError:  # the kernel is short of memory
                time.sleep(_PAUSE_S)

    def send(self, kind: EnvelopeKind, payload: bytes = b"", number: int = 0, ack: int = 0) -> None:
        """Sends one envelope to the daemon; replies and questions are numbered."""
        raw = envelope(
            kind,
            payload,
            session=self.session,
            worker=self.worker,
            first_seq=number,
            last_seq=ack,
        )
        with self.guard:
            self._sent += 1
            send_all(self._sock, frame(raw))

    def audit(self, what: str, name: str, refused: str) -> None:
        """Sends the daemon an entry of its audit log; a client's child has none."""
        if self._page is None:
            said = node_pb2.Audited(
                what=brief(what),
                name=brief(name),
                refused=brief(refused),
            )
            self.send(EnvelopeKind.AUDIT, said.SerializeToString())

    def send_with(
        self, fd: Descriptor | None, kind: EnvelopeKind, told: controller_pb2.Transfer
    ) -> None:
        """Sends the message about an array with its memory; without memory it has an error."""

        def framed(error: str) -> bytes:
            told.error = told.error or error
            payload = told.SerializeToString()
            return frame(envelope(kind, payload, session=self.session, worker=self.worker))

        with self.guard:
            self._sent += 1
            if told.error or fd is None:
                send_all(self._sock, framed(""))
            else:
                send_with_fd(self._sock, framed(""), fd, framed)

    # Keys of the session's rendezvous ------------------------------------------------

    def put_key(self, key: str, value: bytes, seconds: float) -> None:
        """Writes a key of the session's rendezvous, which ranks of other nodes can read.

        Raises:
            ConnectionError: It could not be written in so many seconds.
            DaemonGone: The socket was closed.
        """
        request = node_pb2.PutRequest(items={key: value}, timeout_s=seconds)
        self._ask(EnvelopeKind.PUT_KEY, request.SerializeToString())

    def get_key(self, key: str, seconds: float) -> bytes:
        """Waits until a rank has written a key, and returns its value.

        Raises:
            ConnectionError: None has written it in so many seconds, or none will.
            DaemonGone: The socket was closed.
        """
        request = node_pb2.GetRequest(key=key, timeout_s=seconds)
        return self._ask(EnvelopeKind.GET_KEY, request.SerializeToString())

    def _ask(self, kind: EnvelopeKind, request: bytes) -> bytes:
        """Waits for the daemon's answer, which keeps to the limit; what else comes is kept."""
        with self.guard:  # an answer that nobody awaits would be taken for the next one's
            self._key = None
            self._questions += 1
            self.send(kind, request, self._questions)
            while self._key is None:
                self.read()
            if self._key.error:
                raise ConnectionError(self._key.error)
            return self._key.value

    def show_progress(self, seq: int) -> None:
        """Writes to the shared page that everything up to this command is executed."""
        if self._page is not None:
            self._page.write(seq, self._sent)

    def say_progress(self, seq: int) -> None:
        """Reports that everything up to this command is executed."""
        self.show_progress(seq)
        send_all(self._sock, frame_of_progress(seq))
        self._answered = True

    def reply(self, raw: bytes, ack: int = 0) -> None:
        """Sends one encoded reply to the client, then the rest of the arrays that it names.

        This is still part of the command: the next one may change the arrays.

        Args:
            raw: The reply.
            ack: The newest command with which this rank is done, for who relays it.
        """
        offers = self.porter.announce()
        self._replies += 1
        self.send(EnvelopeKind.REPLY, raw, self._replies, ack)
        self.porter.complete(offers)

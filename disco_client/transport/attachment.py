"""How a session is attached to its controller: by a stream, and the next one if that broke."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from disco_client import errors
from disco_client.clock import monotonic
from disco_client.pb import controller_pb2, node_pb2
from disco_client.telemetry import spans
from disco_client.transport.base import QueuePosition
from disco_client.transport.carriers import OpenStream, StreamBroken, open_stream
from disco_client.transport.channel import ReloadingChannel
from disco_client.transport.endings import error_before
from disco_client.transport.outgoing import Outgoing
from disco_client.transport.refusals import why_refused
from disco_client.transport.stream_reader import StreamReader
from disco_client.wire.codec import EncodedEnvelope, EnvelopeKind
from disco_client.wire.overview import describe_wait

__all__ = ["Attachment"]

_SERVICE = "/disco.v1.SessionService/"


class Attachment:
    """Opens the streams of one session; the former one ends with the next.

    Args:
        line: The channel to the controller.
        address: Its address, for messages.
        reader: Reads the streams.

    Attributes:
        out: What the session sends, over one after another.
        ready: What the controller said of the session when it was attached last.
        early: What ranks have printed before that.
    """

    def __init__(self, line: ReloadingChannel, address: str, reader: StreamReader) -> None:
        self._line = line
        self._address = address
        self._reader = reader
        self._streams: list[OpenStream] = []
        self._over = False
        self.out = Outgoing()
        self.ready = controller_pb2.SessionReady()
        self.early: deque[EncodedEnvelope] = deque()

    # Opening ------------------------------------------------------------------------

    def open(
        self,
        first: bytes,
        name: str,
        on_queued: Callable[[QueuePosition], None] = lambda _waiting: None,
    ) -> None:
        """Opens a stream, and reads until the session is ready.

        Args:
            first: The envelope that begins it.
            name: What the program calls the session.
            on_queued: Gets the session's place in the queue, each time that it changes.

        Raises:
            ConnectionFailed: The connection broke, or the controller speaks another protocol.
            DiscoError: The controller refused the session, or it ended.
        """
        self._begin(first)
        try:
            for received in self._reader:
                if received.kind == EnvelopeKind.QUEUED:
                    on_queued(_position(controller_pb2.Queued.FromString(received.payload)))
                elif received.kind == EnvelopeKind.READY:
                    self.ready = controller_pb2.SessionReady.FromString(received.payload)
                    return
                elif received.kind == EnvelopeKind.LOG:
                    self.early.append(received)
                elif received.kind == EnvelopeKind.ENDED:
                    ended = controller_pb2.SessionEnded.FromString(received.payload)
                    raise error_before(ended, name)
                elif received.kind == EnvelopeKind.REFUSED:
                    raise _refusal(node_pb2.Refused.FromString(received.payload))
        except StreamBroken as error:
            raise error.refused or errors.ConnectionFailed(self.broken(error)) from None
        msg = f"the controller at {self._address} ended the session before it was ready"
        raise errors.ConnectionFailed(msg)

    def _begin(self, first: bytes) -> None:
        for former in self._streams:
            former.close()
        trace = tuple(spans.active_headers().items())
        stream = open_stream(self._line, _SERVICE, first, self.out.stream(first), trace)
        # Other threads look at the last one at any time.
        left = [former for former in self._streams if not former.join(0.0)]
        self._streams = [*left, stream]
        if self._over:  # since it began to be opened
            stream.close()
        self._reader.begin(stream)

    def renew(self) -> None:
        """Reads certificates and tokens anew for the next stream."""
        self._line.renew()

    # Words --------------------------------------------------------------------------

    @property
    def ended(self) -> str:
        """Says that the controller ended the stream."""
        return f"the controller at {self._address} ended the stream"

    def broken(self, error: StreamBroken) -> str:
        """Says how the stream broke."""
        return f"the connection to the controller at {self._address} broke: {error}"

    def why_refused(self) -> str | None:
        """Why the controller refuses this program, as far as it says that to a new call."""
        return why_refused(self._address, self._line.credentials)

    # The present stream ---------------------------------------------------------------

    @property
    def carrier(self) -> str:
        """What carries it: ``frames`` or ``grpc``."""
        return self._streams[-1].carrier if self._streams else ""

    @property
    def entered(self) -> bool:
        """Whether the calling thread is in the middle of sending."""
        return self.out.entered() or self._streams[-1].entered

    def flush(self) -> None:
        """Sends what was issued, as far as that need not wait."""
        self._streams[-1].flush()

    def break_off(self) -> None:
        """Ends it, so that the next one is opened."""
        self._streams[-1].close()

    # The end --------------------------------------------------------------------------

    def cancel(self) -> None:
        """Ends it, and lets no other one begin; idempotent."""
        self._over = True
        self.out.end()
        for stream in self._streams:
            stream.close()

    def join(self, timeout: float) -> None:
        """Waits until no thread is left of the streams."""
        deadline = monotonic() + timeout
        for stream in self._streams:
            stream.join(max(0.0, deadline - monotonic()))


def _refusal(refused: node_pb2.Refused) -> errors.DiscoError:
    kind = errors.AccessDenied if refused.denied else errors.ConnectionFailed
    return kind(refused.message)


def _position(queued: controller_pb2.Queued) -> QueuePosition:
    reason = "; ".join(filter(None, (describe_wait(queued), queued.held_by_lost)))
    return QueuePosition(queued.ahead, queued.total_slots, queued.free_slots, reason)

"""Faults on purpose: messages of a stream that are lost, late, doubled or out of order.

For tests of what comes back after such faults, and off unless the environment asks
for them. ``DISCO_TEST_FAULTS`` is read by each process that has a stream: the client,
the controller, a worker daemon. It holds entries, with semicolons between them::

    POINT[KIND]:ACTION=WHICH
    controller.to_client[REPLY]:cut=3;client.send:delay=2-5/0.5;node.send:drop=1%;seed=7

POINT
    Where: ``client.send``, ``client.receive``, ``controller.from_client``,
    ``controller.to_client``, ``controller.from_node``, ``controller.to_node``,
    ``node.receive`` or ``node.send``.
``[KIND]``
    Only envelopes of this kind pass for it and are counted, such as ``[BATCH]`` and
    ``[REPLY]``; without it all do, heartbeats included.
ACTION
    ``drop`` loses the message. ``cut`` loses it and breaks the stream, as a failing
    connection does. ``duplicate`` lets it pass twice. ``delay`` holds it and all
    behind it for some seconds. ``swap`` holds it until the next one has passed; where
    none comes, or the stream breaks before, it is lost.
WHICH
    The how manieth message, ``3``, from there to there, ``3-5``, or each one with
    these odds, ``2.5%``. A delay says behind it for how long, ``3/0.5``. Messages are
    counted over all streams of a process at that point, so a message that is sent
    again after a broken connection is another one.

An entry ``seed=NUMBER`` chooses which messages the odds meet. At most one thing
happens to a message: what the first entry says that meets it.
"""

from __future__ import annotations

import enum
import logging
import os
import random
import re
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from disco_client.errors import ConfigError
from disco_client.forks import ForkLock
from disco_client.pb import envelope_pb2
from disco_client.wire.codec import Kind

__all__ = [
    "POINTS",
    "VARIABLE",
    "FaultAction",
    "InjectedCut",
    "Passage",
    "check",
    "passage",
    "through",
]


VARIABLE = "DISCO_TEST_FAULTS"
POINTS = (
    "client.send",
    "client.receive",
    "controller.from_client",
    "controller.to_client",
    "controller.from_node",
    "controller.to_node",
    "node.receive",
    "node.send",
)

_logger = logging.getLogger("disco.faults")
_ENTRY = re.compile(
    r"(?P<point>[a-z._]+)(?:\[(?P<kind>[A-Z_]+)\])?:(?P<action>[a-z]+)="
    r"(?P<which>[0-9.]+%|[0-9]+(?:-[0-9]+)?)(?:/(?P<seconds>[0-9.]+))?"
)
_EXAMPLE = "controller.to_client[REPLY]:cut=3"


class InjectedCut(ConnectionError):
    """A stream is broken on purpose; whoever reads or writes it should see it as broken."""


class FaultAction(enum.Enum):
    """What happens to a message."""

    DROP = "drop"
    CUT = "cut"
    DUPLICATE = "duplicate"
    DELAY = "delay"
    SWAP = "swap"


@dataclass(slots=True)
class _Rule:
    """One entry, and how many messages it has seen.

    Attributes:
        point: Where it looks.
        kind: What it counts; None for everything.
        action: What happens to those that it meets.
        first, last: Which ones, counted from 1; with odds all.
        odds: The chance of each; 1 for those that are counted.
        seconds: How long a delay is.
        dice: Decides where there are odds.
        seen: How many came so far.
    """

    point: str
    kind: Kind | None
    action: FaultAction
    first: int
    last: int
    odds: float
    seconds: float
    dice: random.Random
    seen: int = 0

    def meets(self, kind: int) -> bool:
        """Counts a message; whether this one is meant."""
        if self.kind is not None and kind != self.kind:
            return False
        self.seen += 1
        if self.odds < 1.0:
            return self.dice.random() < self.odds
        return self.first <= self.seen <= self.last


@dataclass(slots=True)
class _Faults:
    """All entries of a process."""

    text: str
    rules: tuple[_Rule, ...]
    lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, point: str, raw: bytes) -> _Rule | None:
        """The rule that meets a message; every rule counts it."""
        kind = envelope_pb2.Envelope.FromString(raw).kind
        with self.lock:
            met = [rule for rule in self.rules if rule.point == point and rule.meets(kind)]
        return met[0] if met else None


class Passage:
    """One stream's way past a point; used by one thread or task at a time."""

    def __init__(self, faults: _Faults, point: str) -> None:
        self._faults = faults
        self._point = point
        self._held: list[bytes] = []

    def meet(self, raw: bytes) -> tuple[list[bytes], float]:
        """Takes a message; returns what passes now, and after how many seconds.

        Raises:
            InjectedCut: The stream breaks here.
        """
        rule = self._faults.find(self._point, raw)
        held, self._held = self._held, []
        if rule is None:
            return [raw, *held], 0.0
        _logger.info("%s: %s of message %d", self._point, rule.action.value, rule.seen)
        match rule.action:
            case FaultAction.DROP:
                return held, 0.0
            case FaultAction.CUT:
                msg = f"{VARIABLE} breaks the stream at {self._point}"
                raise InjectedCut(msg)
            case FaultAction.DUPLICATE:
                return [raw, raw, *held], 0.0
            case FaultAction.DELAY:
                return [raw, *held], rule.seconds
            case FaultAction.SWAP:
                self._held = [raw]
                return held, 0.0


_current = _Faults("", ())
_loading = ForkLock()


def _load() -> _Faults:
    """The faults that the environment asks for; what was counted stays while it does not change."""
    global _current  # noqa: PLW0603  (one environment, one count)
    text = os.environ.get(VARIABLE, "")
    with _loading.held():
        if text != _current.text:
            _current = _parse(text)
            if text:
                _logger.warning("faults on purpose, because %s is set: %s", VARIABLE, text)
        return _current


def check() -> None:
    """Says at a daemon's start whether faults are on.

    Raises:
        ConfigError: ``DISCO_TEST_FAULTS`` is malformed.
    """
    _load()


def passage(point: str) -> Passage | None:
    """What happens to a new stream's messages at a point; None where nothing does.

    Raises:
        ConfigError: ``DISCO_TEST_FAULTS`` is malformed.
    """
    faults = _load()
    if any(rule.point == point for rule in faults.rules):
        return Passage(faults, point)
    return None


def through(point: str, messages: Iterable[bytes]) -> Iterable[bytes]:
    """Leads the messages of a blocking stream past a point.

    Raises:
        ConfigError: ``DISCO_TEST_FAULTS`` is malformed.
    """
    way = passage(point)
    return messages if way is None else _led(way, messages)


def _led(way: Passage, messages: Iterable[bytes]) -> Iterator[bytes]:
    for raw in messages:
        passed, pause = way.meet(raw)
        if pause:
            time.sleep(pause)
        yield from passed


def _parse(text: str) -> _Faults:
    entries = [entry.strip() for entry in text.split(";") if entry.strip()]
    seed = 0
    rules: list[_Rule] = []
    for entry in entries:
        if re.fullmatch(r"seed=[0-9]+", entry):
            seed = int(entry.removeprefix("seed="))
    for number, entry in enumerate(entries):
        if not entry.startswith("seed="):
            rules.append(_parse_rule(entry, random.Random(seed * 1000 + number)))  # noqa: S311  (no secret)
        elif not re.fullmatch(r"seed=[0-9]+", entry):
            raise _wrong(entry, "seed=NUMBER")
    return _Faults(text, tuple(rules))


def _parse_rule(entry: str, dice: random.Random) -> _Rule:
    found = _ENTRY.fullmatch(entry)
    if found is None:
        raise _wrong(entry, f"POINT[KIND]:ACTION=WHICH such as {_EXAMPLE}")
    if found["point"] not in POINTS:
        raise _wrong(entry, f"one of the points {', '.join(POINTS)}")
    actions = [action.value for action in FaultAction]
    if found["action"] not in actions:
        raise _wrong(entry, f"one of the actions {', '.join(actions)}")
    if found["kind"] is not None and found["kind"] not in Kind.__members__:
        raise _wrong(entry, f"one of the kinds {', '.join(Kind.__members__)}")
    action = FaultAction(found["action"])
    if (action is FaultAction.DELAY) is not (found["seconds"] is not None):
        raise _wrong(entry, "seconds behind a delay, such as delay=3/0.5, and behind nothing else")
    try:
        first, last, odds = _parse_which(found["which"])
        seconds = float(found["seconds"] or 0)
    except ValueError:
        raise _wrong(entry, "messages such as 3, 3-5 or 2.5%") from None
    kind = None if found["kind"] is None else Kind[found["kind"]]
    return _Rule(found["point"], kind, action, first, last, odds, seconds, dice)


def _parse_which(which: str) -> tuple[int, int, float]:
    """Reads which messages are meant: the first, the last, and the odds."""
    if which.endswith("%"):
        odds = float(which.removesuffix("%")) / 100
        if not 0 < odds < 1:
            raise ValueError
        return 1, 0, odds
    first, _, last = which.partition("-")
    start, end = int(first), int(last or first)
    if not 1 <= start <= end:
        raise ValueError
    return start, end, 1.0


def _wrong(entry: str, expected: str) -> ConfigError:
    return ConfigError(f"{VARIABLE}: expected {expected}, got {entry!r}")

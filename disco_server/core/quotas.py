"""How many sessions and slots there may be, of all and of each owner, and for how long.

An owner is one token or certificate; without authentication, one process by the name that it
states. No I/O: the caller has read the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Final, cast

from disco_client.errors import ConfigError
from disco_client.text import hidden_in, many, some
from disco_client.wire.limits import MAX_WORKERS, WINDOW_COMMANDS
from disco_server.core.session_state import End, EndReason, Priority, QuotaUse, SessionTable
from disco_server.settings import OneOf, did_you_mean, read_limit, refuse, whole

__all__ = ["DEFAULT_LIMITS", "MOST_SESSIONS", "Quota", "SessionLimits", "read_quotas"]


MOST_SESSIONS: Final = 1_000_000
_OWNER: Final = "owner"
_MOST_NAME: Final = 128


@dataclass(frozen=True, slots=True)
class Quota:
    """What one owner may have.

    Attributes:
        sessions: How many sessions, those that wait included.
        slots: How many slots its sessions may hold at a time; 0 for any number.
        session_limit_s: How long a session may hold its slots, in seconds; 0 for ever.
        idle_limit_s: How long a client that is connected may do nothing; 0 for ever.
        command_limit_s: How long a command of a session that begins now may take; 0 for any time.
        priority: The highest class of its sessions in the queue.
    """

    sessions: int = 256
    slots: int = 0
    session_limit_s: float = 0.0
    idle_limit_s: float = 0.0
    command_limit_s: float = 0.0
    priority: Priority = Priority.NORMAL


_SETTINGS: Final = {
    "sessions": "--max-client-sessions",
    "slots": "--max-client-slots",
    "session_limit_s": "--session-limit",
    "idle_limit_s": "--idle-limit",
    "command_limit_s": "--command-limit",
    "priority": "--client-priority",
}
"""The option of the controller for owners that no table of the file names."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """How many sessions there may be, those that wait for slots included, and how large.

    Attributes:
        total: Of all clients.
        workers: Of one session.
        quota: What each owner may have.
        owners: What others may have instead, by the name of the owner.
        warning_s: How long before a limit ends a session its client is warned, in seconds; at
            most half of the limit.
        window: How many commands of a session may be under way.
    """

    total: int = 1024
    workers: int = MAX_WORKERS
    quota: Quota = field(default_factory=Quota)
    owners: Mapping[str, Quota] = field(default_factory=lambda: MappingProxyType({}))
    warning_s: float = 60.0
    window: int = WINDOW_COMMANDS

    def of(self, session: SessionTable) -> Quota:
        """The quota of a session's owner."""
        return self.owners.get(session.owner_name, self.quota)

    def slots(self, session: SessionTable) -> int:
        """How many slots a session's owner may hold; 0 for any number."""
        return self.of(session).slots

    @property
    def timed(self) -> bool:
        """Whether any session has a limit of time."""
        return any(q.session_limit_s or q.idle_limit_s for q in (self.quota, *self.owners.values()))

    def usual_priority(self, principal: str) -> Priority:
        """The class of a session whose client names none."""
        name = principal.partition(":")[2]
        return min(Priority.NORMAL, self.owners.get(name, self.quota).priority)

    def refusal(self, asked: SessionTable, total: int, own: Collection[SessionTable]) -> End | None:
        """Why a session is refused at once; None where it is not.

        Args:
            asked: The session.
            total: How many sessions are not gone, `asked` among them.
            own: Those of the same owner, likewise.
        """
        if total > self.total:
            message = (
                f"the controller has {many(self.total, 'session')}, as many as it takes; end one, "
                "or start it with a greater --max-sessions"
            )
            return End(EndReason.NO_SLOTS, message)
        quota = self.of(asked)
        # What has ended and waits for its ranks to go is not counted, so that a client may open
        # the next session at once; it holds slots, of which there are so many and no more.
        if len(own) > quota.sessions and sum(each.alive for each in own) > quota.sessions:
            others = [each for each in own if each is not asked and each.alive]
            return self._refused(
                asked,
                "sessions",
                f"{asked.owner} has {many(quota.sessions, 'session')} "
                f"({some([each.name for each in others])}), as many as one client may have; end "
                "one",
                QuotaUse("sessions", quota.sessions, len(others), _names(others)),
            )
        if asked.priority > quota.priority:
            return self._refused(
                asked,
                "priority",
                f"expected a priority of at most {quota.priority.word!r}, the highest that "
                f"{asked.owner} may ask for, got {asked.priority.word!r}; ask for that",
                QuotaUse("priority"),
            )
        if quota.slots and asked.num_workers > quota.slots:
            return self.slots_refusal(asked, own, never=True)
        return None

    def slots_refusal(
        self, asked: SessionTable, own: Collection[SessionTable], *, never: bool
    ) -> End:
        """The end of a session that the quota of slots holds back.

        Args:
            asked: The session.
            own: Those of the same owner.
            never: Whether it has more workers than its owner may ever hold slots.
        """
        limit = self.slots(asked)
        holding = [each for each in own if each.shares]
        used = sum(each.num_workers for each in holding)
        held = some([f"{each.name!r} holds {each.num_workers}" for each in holding])
        if never:
            text = (
                f"expected at most {many(limit, 'worker')}, as many slots as {asked.owner} may "
                f"hold at a time, got {asked.num_workers}; ask for fewer"
            )
        else:
            text = (
                f"no room for {many(asked.num_workers, 'worker')} in time: {asked.owner} may hold "
                f"{many(limit, 'slot')} at a time, and holds {used} ({held}); end a session, "
                "wait longer (timeout=...)"
            )
        return self._refused(asked, "slots", text, QuotaUse("slots", limit, used, _names(holding)))

    def _refused(self, asked: SessionTable, name: str, text: str, use: QuotaUse) -> End:
        return End(EndReason.QUOTA, f"{text}, or {self.how_to_raise(asked, name)}", quota=use)

    def how_to_raise(self, session: SessionTable, name: str) -> str:
        """What an administrator does so that an owner may have more."""
        if session.owner_name in self.owners:
            where = f"{name} of [{_OWNER}.{session.owner_name}] in its --quota-file"
            return f"ask the controller's administrator for a greater {where}"
        return f"start the controller with a greater {_SETTINGS[name]}"


DEFAULT_LIMITS: Final = SessionLimits()


def _names(sessions: Collection[SessionTable]) -> tuple[str, ...]:
    return tuple(each.name for each in sessions)


# The file of the quotas of single owners -------------------------------------------


def _read_priority(value: object, where: str) -> Priority:
    return Priority[str(OneOf(tuple(each.word for each in Priority))(value, where)).upper()]


_READERS: Final[Mapping[str, Callable[[object, str], object]]] = {
    "sessions": whole(1, MOST_SESSIONS),
    "slots": whole(0, MOST_SESSIONS),
    "session_limit_s": read_limit,
    "idle_limit_s": read_limit,
    "command_limit_s": read_limit,
    "priority": _read_priority,
}


def read_quotas(text: str, where: str, usual: Quota) -> Mapping[str, Quota]:
    """Reads the content of a file of quotas: a table ``[owner.NAME]`` for each owner.

    Args:
        text: The content, as TOML.
        where: What the file is called, for errors.
        usual: What an owner may have where its table does not say otherwise.

    Raises:
        ConfigError: It is not of this form.
    """
    try:
        content: dict[str, object] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: expected TOML, got: {error}") from None
    for name in content:
        if name != _OWNER:
            raise ConfigError(f"{where}: expected tables [{_OWNER}.NAME] alone, got {name!r}")
    owners = content.get(_OWNER, {})
    if not isinstance(owners, dict):
        raise refuse(where, f"tables [{_OWNER}.NAME]", owners)
    return {
        name: _read_quota(name, table, where, usual)
        for name, table in cast("dict[str, object]", owners).items()
    }


def _read_quota(name: str, table: object, where: str, usual: Quota) -> Quota:
    at = f"{where}: [{_OWNER}.{name[:_MOST_NAME]}]"
    if not isinstance(table, dict):
        raise refuse(at, "a table", table)
    if not name or len(name) > _MOST_NAME or hidden_in(name, "a name") is not None:
        raise ConfigError(f"{at}: expected the name of a token or certificate")
    known = [each.name for each in fields(Quota)]
    given: dict[str, object] = {}
    for key, value in cast("dict[str, object]", table).items():
        if key not in known:
            raise ConfigError(f"{at}: no quota {key!r}{did_you_mean(key, known)}")
        given[key] = _READERS[key](value, f"{at} {key}")
    return replace(usual, **given)  # type: ignore[arg-type]  (each has been read)

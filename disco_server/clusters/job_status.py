"""What has become of a job, in Slurm's words, which are taken for other batch systems too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["GONE", "JobStatus"]

GONE: Final = "GONE"
"""The state of a job that Slurm knows no more; it forgets those that ended minutes ago."""

_WAITS = frozenset(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED", "STOPPED"))
_RUNS = frozenset(("RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "RESIZING"))

_REASONS: Final[Mapping[str, str]] = {
    "BadConstraints": "no node can ever be as it asks",
    "Dependency": "it waits for another job",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "its user holds it: scontrol release",
    "None": "Slurm has not looked at it yet",
    "PartitionNodeLimit": "the partition gives no job so many nodes",
    "PartitionTimeLimit": "the partition gives no job so much time",
    "Priority": "other jobs come first",
    "ReqNodeNotAvail": "a node that it asks for is down, drained or reserved",
    "Resources": "no nodes are free for it",
}


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What has become of a job.

    Attributes:
        job: Its number.
        state: In Slurm's word, such as ``"PENDING"``; `GONE` where Slurm knows it no more.
        left: How much of its time is left, as Slurm writes it.
        nodes: Its nodes, as Slurm abbreviates them; empty while it waits.
        reason: Why it waits or has ended, in Slurm's word.
    """

    job: str
    state: str
    left: str = ""
    nodes: str = ""
    reason: str = "None"

    @property
    def waits(self) -> bool:
        """Whether it waits in the queue."""
        return self.state in _WAITS

    @property
    def runs(self) -> bool:
        """Whether its processes run, or are being ended."""
        return self.state in _RUNS

    @property
    def why(self) -> str:
        """The reason, with what it means where Slurm's word does not say that."""
        meaning = _REASONS.get(self.reason.partition(",")[0])
        return f"{self.reason} ({meaning})" if meaning else self.reason

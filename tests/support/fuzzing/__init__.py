"""Decoders under whatever bytes arrive: what each may raise, and the loops that try them."""

from fuzzing.target import Finding, Target, outcome
from fuzzing.targets import TARGETS

__all__ = ["TARGETS", "Finding", "Target", "outcome"]

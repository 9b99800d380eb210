"""The rules of functions of distributed tensors, and where others are added.

A rule looks at the operands and says what a worker computes of its part: which local
function, how the axes go together (`Pattern`), and what the whole result is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from disco_client.distributed.pattern import Pattern
from disco_client.distributed.struct_info import DTensorStructInfo, TensorStructInfo
from disco_client.errors import ConfigError

__all__ = ["Local", "Rule", "Tables", "fitting", "only_tensors", "register_rule", "rule_for"]

_Result = TypeVar("_Result")

Tables = Callable[[Sequence[DTensorStructInfo], DTensorStructInfo], Mapping[str, Sequence[Any]]]
"""Makes, of the operands as they lie then and the result, what differs by worker."""


@dataclass(frozen=True)
class Local:
    """What a function comes to.

    Attributes:
        name: The function that each worker calls on its parts.
        pattern: How the axes go together.
        result: The whole result.
        options: What the local function takes besides, by name.
        tables: The same where it differs from worker to worker.
    """

    name: str
    pattern: Pattern
    result: TensorStructInfo
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tables: Tables | None = None


Rule = Callable[..., Local]
"""Takes a `TensorStructInfo` for each operand, then the options by name."""

_rules: dict[str, Rule] = {}


def register_rule(name: str) -> Callable[[Rule], Rule]:
    """Registers the rule of a function of distributed tensors under its name.

    A rule is called with a `TensorStructInfo` for each operand that is a tensor, and
    with numbers as they are, then with the options by name. It returns a `Local`,
    whose function is one that the workers know: of Disco's own, a dotted name such as
    ``"scipy.special.erf"`` that their allow-list covers, or one registered there with
    ``disco_server.register_func``. It is called with the parts of the operands, and the
    options by name. ``session.apply(name, x, y, ...)`` then computes.

    Args:
        name: The function's name.
    """

    def register(rule: Rule) -> Rule:
        _rules[name] = rule
        return rule

    return register


def rule_for(name: str) -> Rule:
    """Finds a rule.

    Raises:
        ConfigError: There is none.
    """
    rule = _rules.get(name)
    if rule is None:
        raise ConfigError(
            f"there is no rule by which {name} computes on distributed tensors: bring the"
            " operands to every worker with redistribute('R') and call a function of the workers"
            " on their .ref, fetch them with .numpy(), or register a rule with"
            " disco_client.distributed.register_rule"
        )
    return rule


def fitting(name: str, function: Callable[..., _Result], /, *args: Any, **options: Any) -> _Result:
    """Calls a rule or the like; arguments that it does not have are an error of ours.

    Args:
        name: What it is called by.
        function: The rule.
        *args: Its operands.
        **options: Its options.

    Raises:
        ConfigError: They do not fit.
    """
    try:
        return function(*args, **options)
    except TypeError:
        try:
            inspect.signature(function).bind(*args, **options)
        except TypeError as error:
            raise ConfigError(f"{name} on distributed tensors: {error}") from None
        raise


def only_tensors(name: str, *operands: object) -> None:
    """Refuses numbers where tensors must be.

    Raises:
        ConfigError: An operand is a number.
    """
    for operand in operands:
        if not isinstance(operand, TensorStructInfo):
            raise ConfigError(f"{name} needs tensors with axes, got the number {operand!r}")

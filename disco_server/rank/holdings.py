"""What a rank holds, for people who look at it: captured programs, and published tensors.

A rank is asked between two batches of commands, and answers at once. The answer has a bounded
size: a page of either list, and the steps of one program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from disco_client.clock import monotonic
from disco_client.wire.codec import Action
from disco_client.wire.reports import (
    MOST_SOURCES,
    EncodedHoldings,
    EncodedHoldingsRequest,
    WholeTensor,
    what_is_done,
)
from disco_client.wire.values import dtype_name
from disco_server.devices.foreign import native
from disco_server.rank.errors import sendable
from disco_server.rank.program import CompiledProgram, ProgramFlow
from disco_server.rank.registers import is_any_array

__all__ = ["PAGE", "TIMED_S", "describe_holdings"]

PAGE = 25
"""How many programs, and tensors, one answer has."""

TIMED_S = 10.0
"""For how long after a question about its steps the runs of a program are timed."""

_OUTSIDE = 0
_MOST_NAMES, _REST = 1000, "others"
_LONGEST, _MOST_TEXT = 200, 10_000


def describe_holdings(
    asked: EncodedHoldingsRequest,
    programs: Iterable[CompiledProgram],
    published: Mapping[str, tuple[Any, Mapping[str, Any]]],
    name_of: Callable[[int], str],
) -> EncodedHoldings:
    """Says what a rank holds.

    Args:
        asked: Which part of it is wanted.
        programs: Its programs.
        published: Its published values, each with what its client noted.
        name_of: Finds the name of the function in a register.
    """
    found = EncodedHoldings()
    known = sorted(programs, key=lambda program: program.defined)
    found.num_programs = len(known)
    for program in known[asked.programs_from :][:PAGE]:
        found.programs.add(
            defined=program.defined,
            name=program.definition.name,
            num_steps=len(program.labels),
            runs=program.runs,
        )
    for program in known:
        if program.defined == asked.program:
            _add_steps(found, program, name_of)
    tensors = [name for name in sorted(published) if _is_tensor(*published[name])]
    found.num_tensors = len(tensors)
    for name in tensors[asked.tensors_from :][:PAGE]:
        _add_tensor(found, name, *published[name])
    return found


def _add_steps(
    found: EncodedHoldings, program: CompiledProgram, name_of: Callable[[int], str]
) -> None:
    """Adds the steps of a program, and has the next runs of it timed."""
    times = program.time_steps(monotonic() + TIMED_S)
    steps = found.steps
    steps.defined, steps.name = program.defined, program.definition.name
    steps.inputs = len(program.flow.inputs)
    numbers: dict[str, int] = {}
    for step, label in zip(program.flow.steps, program.labels, strict=True):
        name = step.what or label.function or name_of(label.register)
        name = sendable(name[:_LONGEST]) or what_is_done(Action.CALL_PACKED, "")
        if name not in numbers and len(numbers) >= _MOST_NAMES:
            name = _REST
        steps.what.append(numbers.setdefault(name, len(numbers)))
        steps.recorded.append(step.number)
    steps.names.extend(numbers)
    _add_flow(found, program.flow)
    steps.timed = times.timed
    steps.total_ns.extend(times.total_ns)
    steps.last_ns.extend(times.last_ns)


def _add_flow(found: EncodedHoldings, flow: ProgramFlow) -> None:
    """Adds for each step, and for the outputs, where the values come from that it reads."""
    steps = found.steps
    source = {value: -place for place, value in enumerate(flow.inputs, 1)}
    written: dict[int, list[int]] = {}
    for place, value in flow.written:
        written.setdefault(place, []).append(value)
    for place, step in enumerate(flow.steps):
        # The function of a call stands first; which one that is, is said by its name.
        values = step.tokens if step.what else step.tokens[1:]
        read = dict.fromkeys(source.get(v, _OUTSIDE) for v in values if isinstance(v, int))
        steps.reads.append(len(read))
        steps.sources.extend([*read][:MOST_SOURCES])
        source[step.result] = place + 1
        source.update(dict.fromkeys(written.get(place, ()), place + 1))
    steps.outputs.extend(source.get(value, _OUTSIDE) for value in flow.outputs)


def _is_tensor(value: Any, facts: Mapping[str, Any]) -> bool:
    return bool(facts) or is_any_array(value)


def _add_tensor(found: EncodedHoldings, name: str, value: Any, facts: Mapping[str, Any]) -> None:
    """Adds a tensor, as far as it can be described: both come from the program of a client."""
    tensor = found.tensors.add(name=sendable(name))
    with contextlib.suppress(Exception):
        array = native(value) if is_any_array(value) else None
        if array is not None:
            tensor.dtype, tensor.nbytes = dtype_name(array.dtype), array.nbytes
            tensor.shape.extend(array.shape)
    with contextlib.suppress(Exception):
        if facts:
            tensor.whole.CopyFrom(
                WholeTensor(
                    shape=facts["shape"],
                    dtype=dtype_name(facts["dtype"]),
                    placement=facts["placement"][:_MOST_TEXT],
                    mesh=facts["mesh"],
                    workers=facts["workers"],
                    axes=facts["names"],
                )
            )

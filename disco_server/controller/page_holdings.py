"""What the page shows of what a rank holds: its captured programs, and distributed tensors.

The answers are made from what a rank told of itself (``rank.holdings``), and from the records
of its commands. They have a bounded size, however long a program is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from disco_client.errors import DiscoError
from disco_client.pb import controller_pb2
from disco_client.tracing.trace import Flight
from disco_client.wire.codec import Action
from disco_client.wire.reports import MOST_SOURCES, Inspection, RankReport
from disco_client.wire.values import dtype_from_name
from disco_server.controller.page_views import ROWS

if TYPE_CHECKING:
    from disco_client.distributed.placement import DTensorStructInfo

__all__ = ["MOST_FROM", "MOST_STEPS", "PARTS", "programs", "tensors"]

MOST_STEPS: Final = 100
"""How many steps one answer has."""

MOST_FROM: Final = 1 << 16
"""The largest number of a first row."""

PARTS: Final = 200
"""Into how many parts the time of a whole program is cut at most."""

_MOST_FUNCTIONS: Final = 24
_MOST_DRAWN: Final = 256
"""Of how many workers a layout is drawn; of more it is told in rows alone."""

_REST: Final = "others"
_LONGEST: Final = 200


def programs(
    found: Inspection, asked: controller_pb2.HoldingsRequest, first: int, count: int
) -> dict[str, Any]:
    """Says which captured programs a rank has, and of one how its steps hang together.

    Args:
        found: What was found out about one rank, with its records.
        asked: What it was asked.
        first: The first step that is wanted, from 0.
        count: How many.

    Returns:
        ``programs``, of which a row has name, number of steps, ``runs`` since its capture, and
        of those runs that are among the rank's records how many (``known``), how long they
        took and how long the last one did; ``graph``, None without a program; and ``note``,
        why there is nothing.
    """
    rank = found.ranks[0] if found.ranks else None
    held = rank.holdings if rank is not None else None
    if rank is None or held is None:
        return {"note": _why_nothing(found, rank), "programs": None, "graph": None}
    ran = _runs(found)
    names = Counter(program.name for program in held.programs)
    rows = [
        {
            "defined": program.defined,
            "name": program.name,
            "steps": program.num_steps,
            "runs": program.runs,
            "namesakes": names[program.name],
            **_of_runs(ran.get(program.name, ())),
        }
        for program in held.programs
    ]
    graph = _graph(held.steps, first, count) if held.HasField("steps") else None
    shown = {"found": held.num_programs, "from": asked.programs_from, "rows": rows}
    return {"note": "", "programs": shown, "graph": graph}


def _why_nothing(found: Inspection, rank: RankReport | None) -> str:
    if rank is None:
        silent = ", ".join(each.node for each in found.silent)
        return f"node {silent} did not answer" if silent else "the rank is not there"
    if rank.state != "running":
        return f"the process is {rank.state}"
    doing = f", which is in {rank.current.what}," if rank.current is not None else ""
    return f"the rank{doing} did not answer: it does between two batches of commands"


def _runs(found: Inspection) -> Mapping[str, list[float]]:
    """By the name of a program how long each of its runs took that a rank has recorded."""
    known: dict[str, list[float]] = {}
    try:
        ranks = Flight.of(found).ranks
    except ValueError:  # a rank's own code wrote into its records
        return known
    for rank in ranks:
        for command in rank.commands:
            over = command.end_ns and not command.failed and not command.skipped
            if command.action == Action.RUN_PROGRAM and over:
                took = (command.end_ns - command.start_ns) / command.group / 1e9
                known.setdefault(command.name, []).append(took)
    return known


def _of_runs(seconds: Sequence[float]) -> dict[str, Any]:
    if not seconds:
        return {"known": 0, "mean_s": None, "last_s": None}
    return {"known": len(seconds), "mean_s": sum(seconds) / len(seconds), "last_s": seconds[-1]}


def _graph(told: controller_pb2.ProgramSteps, first: int, count: int) -> dict[str, Any] | None:
    """A part of a program's steps, and how the time of a run is spread over all of them."""
    steps = len(told.what)
    columns = (told.recorded, told.reads, told.total_ns, told.last_ns)
    names = [*told.names]
    if any(len(column) != steps for column in columns) or any(w >= len(names) for w in told.what):
        return None  # a rank's own code answered
    runs = max(told.timed, 1)
    seconds = [total / runs / 1e9 for total in told.total_ns]
    whole = sum(seconds)
    functions, numbers = _functions(told, seconds)
    first = min(first, max(steps - 1, 0))
    ends = list(accumulate((min(reads, MOST_SOURCES) for reads in told.reads), initial=0))
    outputs: dict[int, list[int]] = {}
    for place, source in enumerate(told.outputs, 1):
        outputs.setdefault(source, []).append(place)
    rows = [
        {
            "step": step + 1,
            "recorded": told.recorded[step],
            "name": names[told.what[step]],
            "function": numbers[told.what[step]],
            "mean_s": seconds[step] if told.timed else None,
            "last_s": told.last_ns[step] / 1e9 if told.timed else None,
            "share": seconds[step] / whole if whole else None,
            "reads": list(told.sources[ends[step] : ends[step + 1]]),
            "more": told.reads[step] - (ends[step + 1] - ends[step]),
            "outputs": outputs.get(step + 1, [])[:MOST_SOURCES],
        }
        for step in range(first, min(first + count, steps))
    ]
    return {
        "defined": told.defined,
        "name": told.name,
        "inputs": told.inputs,
        "steps": steps,
        "timed": told.timed,
        "run_s": whole if told.timed else None,
        "functions": functions,
        "parts": list(_parts(seconds, [numbers[what] for what in told.what])),
        "from": first,
        "rows": rows,
    }


def _functions(
    told: controller_pb2.ProgramSteps, seconds: Sequence[float]
) -> tuple[list[dict[str, Any]], list[int]]:
    """What steps do, what took longest first, and the place there of each of a program's names."""
    took, times = [0.0] * len(told.names), [0] * len(told.names)
    for what, its in zip(told.what, seconds, strict=True):
        took[what] += its
        times[what] += 1
    order = sorted(range(len(took)), key=lambda what: (-took[what], -times[what]))
    shown, rest = order[:_MOST_FUNCTIONS], order[_MOST_FUNCTIONS:]
    functions = [
        {"name": told.names[what], "seconds": took[what], "count": times[what]} for what in shown
    ]
    if rest:
        sums = sum(took[what] for what in rest), sum(times[what] for what in rest)
        functions.append({"name": _REST, "seconds": sums[0], "count": sums[1]})
    numbers = [len(shown)] * len(took)
    for place, what in enumerate(shown):
        numbers[what] = place
    return functions, numbers


def _parts(seconds: Sequence[float], functions: Sequence[int]) -> Iterator[list[float]]:
    """The steps in parts of as many: what took most of each, its time, and its first step."""
    steps, parts = len(seconds), min(len(seconds), PARTS)
    for part in range(parts):
        begin, end = steps * part // parts, steps * (part + 1) // parts
        by_function: dict[int, float] = {}
        for step in range(begin, end):
            by_function[functions[step]] = by_function.get(functions[step], 0.0) + seconds[step]
        most = max(by_function, key=lambda function: by_function[function])
        yield [most, sum(by_function.values()), begin]


def tensors(
    found: Inspection, asked: controller_pb2.HoldingsRequest, name: str, first: int
) -> dict[str, Any]:
    """Says which published tensors a rank has, and of one which worker holds which part.

    Args:
        found: What was found out about one rank.
        asked: What it was asked.
        name: The tensor whose layout is wanted; empty for none.
        first: The first of its workers that is wanted, from 0.

    Returns:
        ``tensors``, of which a row has the whole and the part of this rank; ``layout``, None
        without a tensor; and ``note``, why there is nothing.
    """
    rank = found.ranks[0] if found.ranks else None
    held = rank.holdings if rank is not None else None
    if rank is None or held is None:
        return {"note": _why_nothing(found, rank), "tensors": None, "layout": None}
    rows = [_tensor(each) for each in held.tensors]
    shown = {"found": held.num_tensors, "from": asked.tensors_from, "rows": rows}
    chosen = next((t for t in held.tensors if t.name == name and t.HasField("whole")), None)
    layout = None if chosen is None else _layout(chosen, first)
    return {"note": "", "tensors": shown, "layout": layout}


def _tensor(each: controller_pb2.HeldTensor) -> dict[str, Any]:
    whole = each.whole if each.HasField("whole") else None
    return {
        "name": each.name,
        "dtype": each.dtype if whole is None else whole.dtype,
        "shape": list(each.shape if whole is None else whole.shape),
        "placement": "" if whole is None else whole.placement[:_LONGEST],
        "workers": 1 if whole is None else len(whole.workers),
        "here": list(each.shape) if each.dtype else None,
        "bytes": each.nbytes if each.dtype else None,
        "distributed": whole is not None,
    }


def _layout(each: controller_pb2.HeldTensor, first: int) -> dict[str, Any]:
    """Which worker holds which part, as a picture and in rows."""
    from disco_client.distributed.pictures.show import ShardingPicture

    told: dict[str, Any] = {"name": each.name, "svg": "", "workers": None}
    try:
        info = _info_of(each.whole)
    except (DiscoError, TypeError, ValueError, OverflowError) as error:
        return {**told, "title": f"it cannot be drawn: {error}"}  # a client noted something else
    itemsize = dtype_from_name(each.whole.dtype).itemsize
    places = range(info.device_mesh.size)[first:][:ROWS]
    rows = [
        {
            "worker": info.device_mesh.device_ids[place],
            "part": _part(info, place),
            "shape": list(info.local_shape(place)),
            "bytes": math.prod(info.local_shape(place)) * itemsize,
        }
        for place in places
    ]
    small = info.device_mesh.size <= _MOST_DRAWN
    picture = ShardingPicture(info) if small else None
    return {
        **told,
        "title": repr(info),
        "svg": "" if picture is None else picture.svg(),
        "workers": {"found": info.device_mesh.size, "from": first, "rows": rows},
    }


def _info_of(whole: controller_pb2.WholeTensor) -> DTensorStructInfo:
    from disco_client.distributed.mesh import DeviceMesh
    from disco_client.distributed.placement import DTensorStructInfo, TensorStructInfo

    mesh = DeviceMesh(tuple(whole.mesh), list(whole.workers), list(whole.axes))
    sinfo = TensorStructInfo(tuple(whole.shape), whole.dtype)
    return DTensorStructInfo(sinfo, mesh, whole.placement)


def _part(info: DTensorStructInfo, place: int) -> str:
    """The part that the worker at a place holds, as a slice is written."""
    cuts = (
        "+".join(f"{start}:{stop}" for start, stop in axis) or "-" for axis in info.pieces(place)
    )
    return f"[{', '.join(cuts)}]"[:_LONGEST]

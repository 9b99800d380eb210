"""What notebooks show of meshes and tensors: small tables, and for a tensor its picture."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from disco_client.distributed.pictures.model import picture_of, ranges
from disco_client.distributed.pictures.svg import figure
from disco_client.notebook import facts_table
from disco_client.wire.layout import coordinate_of, shape_within

if TYPE_CHECKING:
    from disco_client.distributed.mesh import DeviceMesh
    from disco_client.distributed.struct_info import DTensorStructInfo

__all__ = ["mesh_html", "tensor_html"]

_PLANE = 2
_MOST = 8
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024
_CELL = 'style="padding:0 .7em;text-align:right"'


def mesh_html(mesh: DeviceMesh) -> str:
    """The workers of a mesh as a table; one for each place along the leading axes.

    Args:
        mesh: The mesh.
    """
    grid = np.array(mesh.device_ids).reshape((1,) * max(_PLANE - mesh.ndim, 0) + tuple(mesh.shape))
    lead = grid.shape[:-_PLANE]
    planes = grid.reshape(-1, *grid.shape[-_PLANE:])
    shown = min(len(planes), _MOST)
    tables = [_plane(mesh, coordinate_of(lead, at), planes[at]) for at in range(shown)]
    more = f"<p>and {len(planes) - shown} more</p>" if shown < len(planes) else ""
    size = " x ".join(map(str, mesh.shape))
    title = f"DeviceMesh of {size} workers: {ranges(mesh.device_ids)}"
    return f"<div><p>{escape(title)}</p>{''.join(tables)}{more}</div>"


def tensor_html(info: DTensorStructInfo) -> str:
    """What a tensor is, beside the picture of where it lies.

    Args:
        info: The tensor.
    """
    tensor, mesh = info.tensor_sinfo, info.device_mesh
    parts = [shape_within(info.bounds(place)) for place in range(mesh.size)]
    sizes = [int(np.prod(part, dtype=np.int64)) * tensor.dtype.itemsize for part in parts]
    each = sorted(set(parts), reverse=True)
    names = f" {mesh.names}" if mesh.names else ""
    facts = {
        "shape": str(tuple(tensor.shape)),
        "dtype": tensor.dtype.name,
        "placement": str(info.placement),
        "mesh": f"{tuple(mesh.shape)}{names}, workers {ranges(mesh.device_ids)}",
        "parts": " or ".join(map(str, each[:_PLANE])),
        "a worker holds": f"at most {_amount(max(sizes))}",
    }
    return (
        '<div style="display:flex;flex-wrap:wrap;gap:1.5em;align-items:center">'
        f"{facts_table('DTensor', facts)}"
        f"{figure(picture_of(info), title=False)}</div>"
    )


def _plane(mesh: DeviceMesh, at: Sequence[int], plane: np.ndarray[Any, Any]) -> str:
    names = mesh.names or ("",) * mesh.ndim
    lead = [name or f"axis {axis}" for axis, name in enumerate(names)]
    title = ", ".join(f"{name}={index}" for name, index in zip(lead, at, strict=False))
    down, across = ("workers", names[0]) if mesh.ndim < _PLANE else names[-_PLANE:]
    rows, columns = (min(extent, _MOST) for extent in plane.shape)
    cut = f"<td {_CELL}>...</td>" if columns < plane.shape[1] else ""
    head = "".join(
        f'<th scope="col" {_CELL}>{escape(_place(across, at))}</th>' for at in range(columns)
    )
    lines = [f"<tr><td></td>{head}{cut}</tr>"]
    for index in range(rows):
        name = down if mesh.ndim < _PLANE else _place(down, index)
        cells = "".join(f"<td {_CELL}>{worker}</td>" for worker in plane[index, :columns])
        lines.append(f'<tr><th scope="row" {_CELL}>{escape(name)}</th>{cells}{cut}</tr>')
    if rows < plane.shape[0]:
        lines.append(f'<tr><td colspan="{columns + 1}">...</td></tr>')
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    return f"<table>{caption}{''.join(lines)}</table>"


def _place(name: str, index: int) -> str:
    return f"{name} {index}".strip()


def _amount(nbytes: int) -> str:
    """So many bytes, in the unit that is easy to read."""
    amount, unit = float(nbytes), 0
    while amount >= _STEP and unit + 1 < len(_UNITS):
        amount, unit = amount / _STEP, unit + 1
    return f"{amount:.3g} {_UNITS[unit]}" if unit else f"{nbytes} {_UNITS[0]}"

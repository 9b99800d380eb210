"""How the tensors of a checkpoint are to lie, where that differs from how they lay."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from disco_client.distributed.mesh import DeviceMesh
from disco_client.distributed.placement import Placement
from disco_client.distributed.struct_info import DTensorStructInfo, TensorStructInfo
from disco_client.errors import ConfigError

__all__ = ["Choice", "Stored"]


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of a checkpoint.

    Attributes:
        name: Its name.
        info: What it is, and how it lay.
    """

    name: str
    info: DTensorStructInfo

    @staticmethod
    def read(path: str, row: Mapping[str, Any]) -> Stored:
        """Takes apart what a worker says of a tensor.

        Raises:
            ConfigError: It cannot be true, or its dtype is not known here.
        """
        try:
            mesh = DeviceMesh(row["mesh"], _as_range(row["workers"]), row["names"])
            tensor = TensorStructInfo(row["shape"], row["dtype"])
            return Stored(row["name"], DTensorStructInfo(tensor, mesh, row["placement"]))
        except ConfigError as error:
            raise ConfigError(f"{path}, tensor {row['name']!r}: {error}") from None


class Choice:
    """What a program says of how loaded tensors are to lie.

    Args:
        mesh: On which mesh; None for the one on which each was saved.
        placements: How they are to lie: one for all, or by names and patterns. None,
            and what no pattern matches, for as they were saved.
        num_workers: Of the session.

    Raises:
        TypeError: These are no mesh or no placements.
        ConfigError: The session lacks workers of the mesh, or a text is no placement.
    """

    def __init__(
        self,
        mesh: DeviceMesh | None,
        placements: Placement | str | Mapping[str, Placement | str] | None,
        num_workers: int,
    ) -> None:
        if mesh is not None and not isinstance(mesh, DeviceMesh):
            msg = f"expected a DeviceMesh for mesh, got {mesh!r}"
            raise TypeError(msg)
        self._mesh = mesh
        self._num_workers = num_workers
        by_name = placements if isinstance(placements, Mapping) else {"*": placements}
        self._by_name = {
            name: None if each is None else _placement(each) for name, each in by_name.items()
        }
        self._patterns = isinstance(placements, Mapping)
        if mesh is not None:
            self._check(mesh, "mesh")

    def decide(self, stored: Sequence[Stored]) -> dict[str, DTensorStructInfo]:
        """Says of each tensor how it is to lie.

        Raises:
            ConfigError: Something does not fit, or a pattern matches nothing.
        """
        names = [each.name for each in stored]
        for pattern in self._by_name if self._patterns else ():
            if pattern not in names and not fnmatch.filter(names, pattern):
                raise ConfigError(
                    f"placements has {pattern!r}, and the checkpoint no such tensor; it has"
                    f" {', '.join(map(repr, names[:8]))}{', ...' if len(names) > 8 else ''}"  # noqa: PLR2004
                )
        return {each.name: self._target(each) for each in stored}

    def _target(self, stored: Stored) -> DTensorStructInfo:
        saved = stored.info
        mesh = saved.device_mesh if self._mesh is None else self._mesh
        if self._mesh is None:
            self._check(mesh, f"{stored.name!r} was saved on")
        placement = self._placement_of(stored.name)
        if placement is None:
            placement = saved.placement
            if mesh.shape != saved.device_mesh.shape:
                raise ConfigError(
                    f"{stored.name!r} was saved as {str(placement)!r} on a mesh of shape"
                    f" {tuple(saved.device_mesh.shape)}, and this mesh has shape"
                    f" {tuple(mesh.shape)}: say how it is to lie there, such as placements="
                    f"{', '.join(['R'] * mesh.ndim)!r} or {{{stored.name!r}: 'S[0]', ...}}"
                )
        try:
            return DTensorStructInfo(saved.tensor_sinfo, mesh, placement)
        except ConfigError as error:
            raise ConfigError(f"{stored.name!r}: {error}") from None

    def _placement_of(self, name: str) -> Placement | None:
        for pattern, placement in self._by_name.items():
            if pattern == name or fnmatch.fnmatchcase(name, pattern):
                return placement
        return None

    def _check(self, mesh: DeviceMesh, what: str) -> None:
        if max(mesh.device_ids) >= self._num_workers:
            raise ConfigError(
                f"{what} {mesh!r}, and the session has {self._num_workers} workers; give a mesh"
                f" of those, such as mesh=session.mesh(({self._num_workers},))"
            )


def _placement(value: object) -> Placement:
    if isinstance(value, str):
        return Placement.from_text(value)
    if not isinstance(value, Placement):
        msg = f"expected a placement such as 'S[0]', or a dict of such by name, got {value!r}"
        raise TypeError(msg)
    return value


def _as_range(workers: Sequence[int]) -> Sequence[int] | range:
    found = range(workers[0], workers[0] + len(workers)) if workers else range(0)
    return found if list(found) == list(workers) else cast("Sequence[int]", list(workers))

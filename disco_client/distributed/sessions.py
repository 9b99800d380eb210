"""What a session offers for distributed tensors."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from disco_client.distributed.dtensor import DTensor
    from disco_client.distributed.engine import Engine
    from disco_client.distributed.mesh import DeviceMesh
    from disco_client.distributed.placement import Placement
    from disco_client.handles import DRef

__all__ = ["Distribution"]

_making = threading.Lock()


class Distribution(ABC):
    """The part of a session that makes and computes distributed tensors."""

    _engine_made: Engine | None = None

    @property
    @abstractmethod
    def num_workers(self) -> int:
        """How many workers the session has."""

    @abstractmethod
    def call_packed(self, func: DRef, *args: object) -> DRef:
        """Calls a function on every worker."""

    @abstractmethod
    def _call_now(self, name: str, *args: object) -> DRef: ...

    @abstractmethod
    def _fill(self, ref: DRef, worker: int, array: np.ndarray[Any, Any]) -> None: ...

    @abstractmethod
    def _get_all(self, ref: DRef, workers: Sequence[int]) -> list[Any]: ...

    @property
    def _engine(self) -> Engine:
        # Most programs compute with no distributed tensor, and load nothing of them.
        if self._engine_made is None:
            from disco_client.distributed.engine import Engine

            with _making:
                if self._engine_made is None:
                    self._engine_made = Engine(self)
        return self._engine_made

    def mesh(self, shape: Sequence[int] | None = None, names: Sequence[str] = ()) -> DeviceMesh:
        """Makes a mesh of this session's first workers.

        Args:
            shape: How many workers along each axis; None for all in one row.
            names: A name for each axis, such as ``("dp", "tp")``.

        Raises:
            ConfigError: The session has fewer workers, or the names do not fit.
        """
        from disco_client.distributed.engine import check_mesh
        from disco_client.distributed.mesh import DeviceMesh

        extents = (self.num_workers,) if shape is None else tuple(shape)
        size = 1
        for extent in extents:
            size *= extent
        return check_mesh(DeviceMesh(extents, range(size), names), self.num_workers)

    def distribute(
        self, array: object, mesh: DeviceMesh | None = None, placement: Placement | str = "R"
    ) -> DTensor:
        """Brings a host array to the workers of a mesh; each gets its own part.

        Parts may be of different sizes, and empty, where the mesh does not divide the
        tensor. The array may be changed as soon as this returns.

        Args:
            array: An array, or what ``numpy.asarray`` makes one of.
            mesh: The mesh; None for all workers in one row.
            placement: How it is to lie there, such as ``"S[0], R"``: a spec for each
                axis of the mesh.

        Raises:
            ConfigError: The placement does not fit the array or the mesh.
            EncodingError: The array holds Python objects.
        """
        return self._engine.distribute(array, self.mesh() if mesh is None else mesh, placement)

    def apply(self, name: str, *operands: Any, **options: Any) -> DTensor:
        """Computes a function of distributed tensors by its name; returns at once.

        Args:
            name: Of one of Disco's functions, or of a rule that was registered.
            *operands: Distributed tensors on one mesh, host arrays, and numbers.
            **options: The function's.

        Raises:
            ConfigError: There is no rule of that name, or the operands do not fit it.
        """
        return self._engine.call(name, *operands, **options)

"""What a session offers for distributed tensors."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from disco_client.telemetry.base import NO_SPAN, Span
from disco_client.telemetry.spans import spanned

if TYPE_CHECKING:
    import os

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
    _span: Span = NO_SPAN

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
    def sync_all(self) -> None:
        """Waits until every worker has executed every command issued before."""

    @abstractmethod
    def _mark(self, worker: int | None = None) -> int: ...

    @abstractmethod
    def _await(self, mark: int) -> None: ...

    @abstractmethod
    def _get_all(self, ref: DRef, workers: Sequence[int], *, own: bool = False) -> list[Any]: ...

    @property
    def _engine(self) -> Engine:
        # Most programs compute with no distributed tensor, and load nothing of them.
        if self._engine_made is None:
            from disco_client.distributed.engine import Engine

            with _making:
                if self._engine_made is None:
                    self._engine_made = Engine(self)
        return self._engine_made

    def mesh(
        self, shape: Sequence[int] | int | None = None, names: Sequence[str] = ()
    ) -> DeviceMesh:
        """Makes a mesh of this session's first workers.

        Args:
            shape: How many workers along each axis; a number for so many in one row,
                None for all.
            names: A name for each axis, such as ``("dp", "tp")``.

        Raises:
            ConfigError: The session has fewer workers, or the names do not fit.
        """
        from disco_client.distributed.engine import check_mesh
        from disco_client.distributed.mesh import DeviceMesh

        if isinstance(shape, int):
            shape = (shape,)
        extents = (self.num_workers,) if shape is None else tuple(shape)
        size = math.prod(extents)
        return check_mesh(DeviceMesh(extents, range(size), names), self.num_workers)

    def distribute(
        self, array: object, mesh: DeviceMesh | None = None, placement: Placement | str = "R"
    ) -> DTensor:
        """Brings a host array to the workers of a mesh; each gets its own part.

        Parts may be of different sizes, and empty, where the mesh does not divide the
        tensor. The array may be changed as soon as this returns. Of a memory-mapped
        array (``numpy.load(..., mmap_mode="r")``) only what is sent is read, part by
        part; of a file the workers read their own parts, after this has waited for what
        the file says of itself.

        Args:
            array: An array, or what ``numpy.asarray`` makes one of; or a file that the
                workers read: :func:`~disco_client.distributed.from_safetensors`,
                :func:`~disco_client.distributed.from_npy`.
            mesh: The mesh; None for all workers in one row.
            placement: How it is to lie there, such as ``"S[0], R"``: a spec for each
                axis of the mesh.

        Raises:
            ConfigError: The placement does not fit the array or the mesh.
            EncodingError: The array holds Python objects.
            BadFile: A worker's file is missing, malformed, or not what another has.
            NotAllowed: A worker's ``--allow-read`` does not cover the file.
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

    @spanned("disco.save")
    def save(
        self,
        path: str | os.PathLike[str],
        tensors: Mapping[str, DTensor],
        *,
        progress: bool | None = None,
    ) -> None:
        """Saves distributed tensors; each worker writes its own parts.

        What is saved is what the commands before this one made of the tensors. Waits
        until everything is durable. However a save ends, the checkpoint that was at
        ``path`` before stays whole until the new one has taken its place.

        Args:
            path: A folder that all workers share; made where it is missing. A relative
                path is taken from the client's own folder.
            tensors: The tensors by their names. Of copies the first worker's is
                written; partial values are combined first.
            progress: Whether to show a progress bar on standard error; None shows it
                on a terminal.

        Raises:
            ConfigError: The path or a name is none, or something is no distributed
                tensor.
            ForeignReference: A tensor belongs to another session.
            BadFile: The folder cannot be written, has no room, is not shared by all
                workers, or another session saves there.
            NotAllowed: A worker's ``--allow-save`` does not cover the folder.
            RemoteError: A tensor could not be computed.
            SessionError: The session is closed or lost.
        """
        from disco_client.distributed.checkpoints import save

        save(self, self._engine, path, tensors, progress=progress)

    @spanned("disco.load")
    def load(
        self,
        path: str | os.PathLike[str],
        mesh: DeviceMesh | None = None,
        placements: Placement | str | Mapping[str, Placement | str] | None = None,
        *,
        progress: bool | None = None,
    ) -> dict[str, DTensor]:
        """Loads the tensors that :meth:`save` wrote; each worker reads its own parts.

        They may come to lie on another mesh, in another way, on more or fewer workers.
        Waits until all is loaded.

        Args:
            path: The checkpoint's folder, on all workers. A relative path is taken from
                the client's own folder.
            mesh: On which mesh they are to lie; None for the mesh on which each was
                saved.
            placements: How they are to lie: one placement for all, or by names and
                patterns (``*`` matches dots too; the first match counts). None, and
                what no pattern matches, for as they were saved, which needs a mesh of
                the same shape.
            progress: Whether to show a progress bar on standard error; None shows it
                on a terminal.

        Returns:
            The tensors by name.

        Raises:
            ConfigError: Mesh and placements do not fit the tensors or the session.
            BadFile: A file is missing on a worker, was damaged or cut short, or is of
                another checkpoint.
            NotAllowed: A worker's ``--allow-read`` does not cover the folder.
            SessionError: The session is closed or lost.
        """
        from disco_client.distributed.checkpoints import load

        return load(self, self._engine, path, mesh, placements, progress=progress)

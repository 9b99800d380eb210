"""The reference of a tensor that was loaded from files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from disco_client.handles import DRef

if TYPE_CHECKING:
    from disco_client.wire.splits import Split

__all__ = ["Weight"]


class Weight(DRef):
    """A reference to a tensor of a model; each worker's register holds its part.

    Made by :meth:`disco_client.Session.load_weights`.

    Attributes:
        name: Its name in the files.
        shape: The shape of the whole tensor.
        dtype: The name of its dtype, such as ``"bfloat16"``.
        split: How it is split; None where each worker has the whole.
    """

    __slots__ = ("_shares", "dtype", "name", "shape", "split")

    def __init__(
        self,
        dref: DRef,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        split: Split | None,
        shares: int,
    ) -> None:
        super().__init__(dref.reg_id, dref.session, owner=dref)
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.split = split
        self._shares = shares

    def shape_on(self, worker_id: int) -> tuple[int, ...]:
        """The shape of one worker's part; no round trip."""
        worker = self.session._check_worker(worker_id)  # noqa: SLF001  (the pair is one thing)
        if self.split is None:
            return self.shape
        return self.split.shape_of(self.shape, self._shares, worker % self._shares)

    def __repr__(self) -> str:
        how = "R" if self.split is None else self.split
        return f"<Weight {self.name!r}: {self.dtype}{list(self.shape)} {how}>"

"""``session.load_weights``: each worker reads its own parts of a model's files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from disco_client.errors import ConfigError
from disco_client.telemetry.base import NO_SPAN, Span
from disco_client.telemetry.spans import spanned
from disco_client.weights.planning import (
    Chosen,
    Plan,
    StoredTensor,
    batches,
    choose,
    read_catalog,
    read_expected,
)
from disco_client.weights.progress import UnderWay, progress_bar, whole_path
from disco_client.weights.weight import Weight
from disco_client.wire.splits import Split
from disco_client.wire.values import dtype_from_name, dtype_name, is_floating

if TYPE_CHECKING:
    from disco_client.handles import DRef

__all__ = ["WeightLoading"]


class WeightLoading(ABC):
    """The part of a session that loads weights from the workers' files."""

    _span: Span = NO_SPAN

    @property
    @abstractmethod
    def num_workers(self) -> int:
        """How many workers the session has."""

    @property
    @abstractmethod
    def num_groups(self) -> int:
        """Into how many equal groups they are divided."""

    @abstractmethod
    def _call_builtin(self, name: str, *args: object) -> DRef: ...

    @abstractmethod
    def sync_all(self) -> None:
        """Waits until every worker has executed every command issued before."""

    @abstractmethod
    def _mark(self, worker: int | None = None) -> int: ...

    @abstractmethod
    def _await(self, mark: int) -> None: ...

    @spanned("disco.load_weights")
    def load_weights(
        self,
        path: str | os.PathLike[str],
        plan: Mapping[str, str | int | Split | None],
        *,
        dtype: object = None,
        expect: Mapping[str, Sequence[int] | None] | None = None,
        strict: bool = True,
        in_group: bool = True,
        progress: bool | None = None,
    ) -> dict[str, Weight]:
        """Loads a model's tensors; each worker reads its own parts from its own disk.

        Names, shapes and the plan are checked before any worker allocates
        anything, and everything that is wrong is in one error. Waits until all
        is loaded.

        Args:
            path: On the workers: a safetensors file, a safetensors index
                (``model.safetensors.index.json``), a ``tensor-cache.json``, or a
                folder with such files. A relative path is taken from the client's
                own folder.
            plan: How each tensor is divided: names or patterns (``*`` matches dots
                too; the first match counts) with ``"R"`` or None (every worker has
                the whole), ``"S[0]"`` or 0 (split along that axis), a
                :class:`~disco_client.Split` (fused parts, uneven extents), or
                ``"skip"`` (not loaded).
            dtype: A floating-point dtype that tensors of floating-point numbers
                are converted to; None keeps what the files have.
            expect: Every tensor that the program needs, with its whole shape, or
                None for any shape.
            strict: Whether a pattern that matches nothing, and a tensor that no
                pattern matches or that is not expected, is an error. Otherwise
                they are ignored, and such tensors left out.
            in_group: Whether each group has a full copy among its workers;
                otherwise one copy is divided among all workers.
            progress: Whether to show a progress bar on standard error; None shows
                it on a terminal.

        Returns:
            The tensors by name, in the order of the files.

        Raises:
            ConfigError: The plan, ``expect`` or the dtype is none.
            WeightsMismatch: Files and plan do not fit; nothing was loaded.
            BadFile: A file is missing on a worker, malformed, or differs from
                worker 0's.
            NotAllowed: A worker's ``--allow-read`` does not cover a file.
            SessionError: The session is closed or lost.
        """
        rules, expected, kind = Plan(plan), read_expected(expect), _float_name(dtype)
        where = whole_path(path)
        shares = self.num_workers // (self.num_groups if in_group else 1)
        opened = self._call_builtin("runtime.disco._weights_open", where)
        self.sync_all()
        tensors, fingerprint = self._fetch_catalog(opened)
        chosen = choose(where, tensors, rules, expected, strict=strict, workers=shares)
        self._call_builtin("runtime.disco._weights_check", opened, fingerprint)
        self.sync_all()

        def name(item: DRef, each: Chosen) -> Weight:
            tensor = each.tensor
            held = kind if kind and is_floating(tensor.dtype) else tensor.dtype
            return Weight(item, tensor.name, tensor.shape, held, each.split, shares)

        loaded: dict[str, Weight] = {}
        with (
            progress_bar(where, sum(each.tensor.nbytes for each in chosen), progress) as bar,
            UnderWay(self, bar.update) as under_way,
        ):
            for batch in batches(chosen, shares):
                requests = [each.request() for each in batch]
                read = self._call_builtin(
                    "runtime.disco._weights_read", opened, requests, kind, bool(in_group)
                )
                for place, each in enumerate(batch):
                    item = self._call_builtin("runtime.disco._weights_item", read, place)
                    loaded[each.tensor.name] = name(item, each)
                under_way.add(sum(each.tensor.nbytes for each in batch))
        return loaded

    def _fetch_catalog(self, opened: DRef) -> tuple[list[StoredTensor], str]:
        """Asks worker 0 what its files hold; returns that and the files' fingerprint."""
        tensors: list[StoredTensor] = []
        while True:
            first = len(tensors)
            page = self._call_builtin("runtime.disco._weights_catalog", opened, first)
            facts: dict[str, Any] = page.debug_get_from_remote(0)
            tensors += read_catalog(facts, first)
            if len(tensors) == facts["total"] or len(tensors) == first:
                return tensors, facts["fingerprint"]


def _float_name(dtype: object) -> str:
    """The name of a dtype of floating-point numbers; empty for None.

    Raises:
        ConfigError: It is none.
    """
    if dtype is None:
        return ""
    # Names of ml_dtypes need that package on the workers only.
    extension = isinstance(dtype, str) and dtype.startswith(("bfloat", "float8"))
    name = dtype if isinstance(dtype, str) and extension else dtype_name(dtype_from_name(dtype))
    if not is_floating(name):
        msg = f"expected a floating-point dtype, got {name!r}"
        raise ConfigError(msg)
    return name

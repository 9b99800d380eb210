"""The functions behind ``ref.stream()``: generators that workers go through step by step."""

from __future__ import annotations

import traceback
from collections.abc import AsyncGenerator, Generator
from functools import partial
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Final, TypeAlias, cast
from weakref import WeakSet

from disco_client.wire.values import STREAM_END
from disco_server.modules.unfinished import is_generator
from disco_server.rank.coroutines import finished
from disco_server.rank.errors import ArgumentRefused, hidden_in_tracebacks, repr_of
from disco_server.rank.functions import NamedCall, register_func
from disco_server.rank.signals import CALL_ENDS, CommandInterrupted, NotBegun
from disco_server.rank.worker import Worker, current_worker

__all__ = ["GeneratorStream"]

_AnyGenerator: TypeAlias = "Generator[Any, Any, Any] | AsyncGenerator[Any, Any]"

_streamed: Final[WeakSet[Any]] = WeakSet()
"""The generators that have a stream, or had one."""


class GeneratorStream(NamedCall):
    """A generator of a worker; each call returns its next item, or `STREAM_END` after the last.

    The generator is closed when the last reference to this ends, in the worker's thread: when
    the program has left its loop, the command that frees the register is all that comes.

    Args:
        worker: The worker.
        generator: The generator.
    """

    __slots__ = ("_generator", "_worker")

    def __init__(self, worker: Worker, generator: _AnyGenerator) -> None:
        step: Any = _next_item if isinstance(generator, GeneratorType) else _await_next_item
        # Nothing in it refers to this object, which ends as soon as its register is emptied.
        super().__init__(cast("Any", generator).__qualname__, partial(step, worker, generator))
        self._worker = worker
        self._generator = generator

    def __del__(self) -> None:
        # An attribute is missing where __init__ raised.
        worker: Worker | None = getattr(self, "_worker", None)
        if worker is None or not _is_here(worker):
            return  # the rank is over, and Python closes the generator
        try:
            try:
                worker.guard.run(_close, worker, self._generator)
            except NotBegun:  # that is about the command that frees the register
                _close(worker, self._generator)
        except (CommandInterrupted, *CALL_ENDS):
            pass
        except BaseException:  # noqa: BLE001  (no command has failed: as of any finalizer)
            traceback.print_exc()


def _is_here(worker: Worker) -> bool:
    try:
        return current_worker() is worker
    except ValueError:
        return False


@hidden_in_tracebacks
def _next_item(worker: Worker, generator: Generator[Any, Any, Any]) -> Any:
    item = next(generator, STREAM_END)
    if item is STREAM_END:
        _go_past(worker)
    return item


@hidden_in_tracebacks
async def _await_next_item(worker: Worker, generator: AsyncGenerator[Any, Any]) -> Any:
    try:
        return await anext(generator)
    except StopAsyncIteration:
        _go_past(worker)
        return STREAM_END


def _go_past(worker: Worker) -> None:
    """Tells the peers that this rank has no item, which they may want to meet it for."""
    if worker.num_workers > 1:
        with worker.guard:
            worker.cannot_enter(worker.position)


def _close(worker: Worker, generator: _AnyGenerator) -> None:
    """Lets a generator execute its ``finally`` blocks, if it has begun and is not over."""
    if isinstance(generator, GeneratorType):
        cast("Generator[Any, Any, Any]", generator).close()
    elif cast("AsyncGeneratorType[Any, Any]", generator).ag_frame is not None:
        finished(worker.guard, _aclose(cast("AsyncGenerator[Any, Any]", generator)))


async def _aclose(generator: AsyncGenerator[Any, Any]) -> None:
    await generator.aclose()


@register_func("runtime.disco._open_stream")
def open_stream(held: Any, worker: int) -> NamedCall:
    """Makes what returns the items of a generator, one at each call.

    Args:
        held: The generator. Workers whose items are not wanted may hold something else.
        worker: The number of the worker whose items are wanted.

    Raises:
        ArgumentRefused: That worker holds no generator, or another stream goes through it.
    """
    here = current_worker()
    if not is_generator(held):
        if here.worker_id == worker:
            raise ArgumentRefused(_described(held, worker))
        return NamedCall("stream", partial(_no_item, here))
    if held in _streamed:
        msg = (
            f"expected a generator that has no stream yet, got {held.__qualname__}, whose items"
            " have gone to another ref.stream(); call the function again for another generator"
        )
        raise ArgumentRefused(msg)
    _streamed.add(held)
    return GeneratorStream(here, held)


def _no_item(worker: Worker) -> Any:
    _go_past(worker)
    return STREAM_END


def _described(held: Any, worker: int) -> str:
    msg = "expected the generator that a call returned, got"
    if held is None:
        return f"{msg} None on worker {worker}; ref.stream(worker=...) takes another worker's items"
    return f"{msg} {repr_of(held)} of type {type(held).__qualname__}; ref.get() fetches it"

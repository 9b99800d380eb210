"""The items of generators on the workers, one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self

from disco_client.copies import Handle
from disco_client.errors import ConfigError
from disco_client.futures import await_room
from disco_client.type_variables import T_co
from disco_client.wire.values import STREAM_END

if TYPE_CHECKING:
    from disco_client.command_log import CommandLog
    from disco_client.futures import RefFuture

__all__ = ["Stream", "check_ahead"]


class Stream(Handle, Generic[T_co]):
    """What a generator on the workers yields; an iterator, for ``for`` and ``async for``.

    Made by :meth:`DRef.stream <disco_client.DRef.stream>`. For type checkers it is a
    ``Stream[T]``, where it is known that the items are of type ``T``. One thread or task at a
    time may use it.

    Examples:
        >>> import disco_server
        >>> @disco_server.register_func("docs.count")
        ... def count(number):
        ...     for each in range(number):
        ...         yield each + disco_server.current_worker().worker_id
        >>> list(session.get_global_func("docs.count")(3).stream(worker=1))
        [1, 2, 3]
    """

    _instead: ClassVar[str] = "pass the items, each of which is a value of the program"

    def __init__(
        self,
        step: Callable[[bool], RefFuture],
        log: CommandLog,
        check_may_wait: Callable[[], None],
        ahead: int,
    ) -> None:
        """Made by a reference, never by a program.

        Args:
            step: Issues the step to the next item, and asks for the item; takes whether the
                question may leave together with what other tasks of the running loop issue. The
                workers close the generator when the last reference to this has ended.
            log: The session's.
            check_may_wait: Raises an error in an event loop that must not be stopped.
            ahead: How many steps are issued before the program asks for their items.
        """
        self._step: Callable[[bool], RefFuture] | None = step
        self._log = log
        self._check_may_wait = check_may_wait
        self._ahead = ahead
        # Of the items that come next, the questions that have been asked.
        self._asked: deque[RefFuture] = deque()

    def __copy__(self) -> Self:
        # There is one generator, which goes on for this one.
        return self

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> T_co:
        if self._step is None:
            raise StopIteration
        self._check_may_wait()
        self._ask(soon=False)
        future = self._asked[0]
        try:
            item = future.result()
        except BaseException:
            if future.done():  # else the wait was ended, and the next one goes on
                self._end(told=True)
            raise
        # An exception that comes between these lines leaves the item for the next call.
        self._asked.popleft()
        if self._is_end(item):
            raise StopIteration
        return item

    async def __anext__(self) -> T_co:
        if self._step is not None:
            await await_room(self._log)
        if self._step is None:
            raise StopAsyncIteration
        self._ask(soon=True)
        future = self._asked.popleft()
        try:
            item = await future
        except BaseException:
            if future.done():
                self._end(told=True)
            else:  # the wait was cancelled, and the next one goes on
                self._asked.appendleft(future)
            raise
        if self._is_end(item):
            raise StopAsyncIteration
        return item

    def close(self) -> None:
        """Ends it, and closes the generator on the workers; returns at once.

        The same happens when the program holds no reference to it any more, as after ``break``.
        ``finally`` blocks of the generator are executed when the steps that were issued are done.
        """
        self._end(told=False)

    def _end(self, *, told: bool) -> None:
        self._step = None
        while self._asked:
            future = self._asked.popleft()
            if told:  # of what follows an error, which has the same cause
                future.mark_told()
            future.cancel()

    def _ask(self, *, soon: bool) -> None:
        """Issues the step to the item that is wanted, and those ahead of it."""
        step, asked = self._step, self._asked
        if step is None:
            return
        try:
            while len(asked) <= self._ahead:
                asked.append(step(soon))
        except BaseException:
            self.close()  # nobody knows whether the step was issued, and who has its item
            raise

    def _is_end(self, item: Any) -> bool:
        ended = type(item) is type(STREAM_END) and item == STREAM_END
        if ended:
            self.close()
        return ended

    def __repr__(self) -> str:
        return f"<{'Stream' if self._step is not None else 'ended Stream'}>"


def check_ahead(ahead: object) -> int:
    """Refuses anything but a number of items.

    Raises:
        ConfigError: It is none.
    """
    if type(ahead) is not int or ahead < 0:
        msg = f"expected ahead as a number of items from 0, got {ahead!r}"
        raise ConfigError(msg)
    return ahead

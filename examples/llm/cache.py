"""Which blocks of the cache belong to whom, and which beginnings of texts they hold.

The workers have the keys and values; here are only the numbers of their blocks (Kwon et al.,
arXiv:2309.06180). A block that is full is known by its tokens and by all that came before them,
so that sequences that begin alike share blocks: also those that nobody uses any more, until
their room is needed, the longest unused first.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from typing import TYPE_CHECKING

from llm.layers import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["BlockPool"]

_Key = tuple[int, tuple[int, ...]]


class BlockPool:
    """The blocks of one cache.

    Args:
        count: How many there are.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))
        self._users = [0] * count
        self._unused: OrderedDict[int, None] = OrderedDict()
        self._known: dict[_Key, tuple[int, int]] = {}
        self._keys: dict[int, _Key] = {}
        self._names = itertools.count(1)

    @property
    def available(self) -> int:
        """How many blocks can be taken."""
        return len(self._free) + len(self._unused)

    @property
    def used(self) -> int:
        """How many blocks sequences hold."""
        return self.count - self.available

    def share(self, tokens: Sequence[int]) -> tuple[list[int], int]:
        """Finds the blocks that hold the beginning of a text, and holds them.

        Returns:
            The blocks, all full, and the name of the last one, 0 for none; see `remember`.
        """
        blocks: list[int] = []
        name = 0
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            found = self._known.get((name, tuple(tokens[start : start + BLOCK])))
            if found is None:
                break
            block, name = found
            blocks.append(block)
        for block in blocks:
            self._unused.pop(block, None)
            self._users[block] += 1
        return blocks, name

    def take(self, count: int) -> list[int]:
        """Takes blocks, those with the lowest numbers first; there must be so many."""
        while len(self._free) < count:
            oldest, _ = self._unused.popitem(last=False)
            del self._known[self._keys.pop(oldest)]
            heapq.heappush(self._free, oldest)
        taken = [heapq.heappop(self._free) for _ in range(count)]
        for block in taken:
            self._users[block] = 1
        return taken

    def remember(self, block: int, tokens: Sequence[int], before: int) -> int:
        """Notes what a block holds, as soon as the step is issued that fills it.

        Args:
            block: The block.
            tokens: Its tokens, as many as a block has.
            before: The name of the text before them; 0 for none.

        Returns:
            The name of the text up to here.
        """
        key = before, tuple(tokens)
        if key not in self._known:
            self._known[key] = block, next(self._names)
            self._keys[block] = key
        return self._known[key][1]

    def release(self, blocks: Iterable[int]) -> None:
        """Gives blocks back; what they hold can be shared until their room is needed."""
        # The last one of a text first: what it begins with serves more texts.
        for block in reversed(list(blocks)):
            self._users[block] -= 1
            if self._users[block]:
                continue
            if block in self._keys:
                self._unused[block] = None
            else:
                heapq.heappush(self._free, block)

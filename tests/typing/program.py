"""A program in strict mode: each line that ends in ``# wrong`` is one that type checkers refuse."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from typing import assert_type

import numpy as np
from numpy.typing import NDArray

import disco_client
from disco_client import DModule, DObject, DPackedFunc, DRef, Saving, Session, Stream, remote
from disco_client.distributed import DTensor


def scale(array: NDArray[np.float64], factor: float = 2.0, *, bias: int = 0) -> list[float]:
    return list(array * factor + bias)


async def look_up(key: str, *, tries: int = 1) -> int:
    return len(key) * tries


def split(text: str) -> Iterator[str]:
    yield from text.split()


def pairs(number: int) -> Generator[tuple[int, int], None, None]:
    yield number, number


async def tokens(prompt: str, *, most: int = 2) -> AsyncIterator[int]:
    for each in range(most):
        yield len(prompt) + each


class Learner:
    def __init__(self, size: int, *, rate: float = 0.5) -> None:
        self.weight = np.full(size, rate)

    def step(self, target: NDArray[np.float64], times: int = 1) -> float:
        self.weight += times * target
        return float(self.weight.sum())

    def losses(self, count: int) -> Iterator[float]:
        yield from self.weight[:count].tolist()

    async def send(self, key: str) -> bytes:
        return key.encode() * len(self.weight)


@remote
def double(number: float, *, times: int = 1) -> list[float]:
    return [2 * number] * times


@remote
async def count(key: str) -> int:
    return len(key)


@remote
class Store:
    def __init__(self, size: int) -> None:
        self.size = size

    def add(self, more: int) -> int:
        return self.size + more


def functions(session: Session, rows: NDArray[np.float64], ref: DRef) -> None:
    scaled = session.function(scale)
    assert_type(scaled(rows).get(), list[float])
    assert_type(scaled(rows, 3.0, bias=1).get_all(), list[list[float]])
    assert_type(scaled(ref, 3.0, bias=1).get(1), list[float])
    assert_type(scaled.on(worker=1)(rows).get(), list[float])
    assert_type(scaled.limit(5)(rows).get(), list[float])
    assert_type(scaled.limit(5).on(worker=1)(ref).get(), list[float])
    scaled(session.distribute(rows, placement="S[0]"), 3.0)
    scaled("text")  # wrong
    scaled(rows, "text")  # wrong
    scaled(rows, factr=1.0)  # wrong
    scaled()  # wrong
    scaled.on(worker=1)("text")  # wrong
    scaled.limit(5)("text")  # wrong
    scaled(rows).get().upper()  # wrong
    session.function(3)  # wrong


def coroutine_functions(session: Session, ref: DRef) -> None:
    looked_up = session.function(look_up)
    assert_type(looked_up("a", tries=2).get(), int)
    assert_type(looked_up("a").get_all(), list[int])
    assert_type(looked_up.limit(5).on(worker=1)(ref).get(), int)
    looked_up(3)  # wrong
    looked_up("a", tries="2")  # wrong
    looked_up("a").get().send(None)  # wrong
    learner = session.create(Learner, 2)
    assert_type(learner[Learner.send]("a").get(), bytes)
    learner[Learner.send](3)  # wrong
    learner[Learner.send]("a").get().send(None)  # wrong


def streams(session: Session, ref: DRef) -> None:
    assert_type(session.function(split)("a b").stream(), Stream[str])
    assert_type(next(session.function(split)(ref).stream(worker=1, ahead=0)), str)
    assert_type(list(session.function(pairs)(3).stream()), list[tuple[int, int]])
    assert_type(next(session.function(tokens).limit(5)("a", most=3).stream()), int)
    learner = session.create(Learner, 2)
    assert_type(next(learner[Learner.losses](3).stream()), float)
    for anything in ref.stream():
        print(anything.upper())
    session.function(scale)(ref).stream()  # wrong
    session.function(split)("a b").stream("1")  # wrong
    session.function(split)(3)  # wrong


def classes(session: Session, rows: NDArray[np.float64], ref: DRef) -> None:
    learner = session.create(Learner, 2, rate=0.25)
    assert_type(learner, DObject[Learner])
    assert_type(learner[Learner.step](rows, 3).get(), float)
    assert_type(learner[Learner.step](ref, times=3).get(), float)
    session.create(Learner, ref)
    learner.step(rows, 3).get()
    learner["weight"].numpy()
    learner[Learner.step]("text")  # wrong
    session.create(Learner, "text")  # wrong
    session.create(Learner, 2, rat=0.25)  # wrong
    session.create(Learner)  # wrong
    learner[scale]  # wrong


def decorated(session: Session, ref: DRef, store: Store) -> None:
    assert_type(double(1.0, times=2), list[float])
    assert_type(double.remote(1.0, times=2).get(), list[float])
    assert_type(double.remote(ref, times=2).get_all(), list[list[float]])
    assert_type(session.function(double)(1.0).get(), list[float])
    assert_type(count.remote("a").get(), int)
    assert_type(session.function(count)("a").get(), int)
    assert_type(session.create(Store, 2)[Store.add](3).get(), int)
    assert_type(store.add(3), int)
    print(double.__name__)
    double("text")  # wrong
    double.remote("text")  # wrong
    double.remote(1.0, time=2)  # wrong
    double.remote(1.0).get().upper()  # wrong
    count.remote(3)  # wrong
    session.function(double)("text")  # wrong
    session.create(Store, "text")  # wrong
    Store.remote(3)  # wrong


def names(session: Session, module: DModule, object_: DObject, ref: DRef) -> None:
    """What is looked up by a name takes and returns anything."""
    total: float = session.get_global_func("numpy.sum")(ref, 3, axis=0).get()
    total += module["sum"](total).get() + object_.total.get()
    func: DPackedFunc = session.get_global_func("numpy.ones")
    ref = session.call_packed(func, 3)
    session.create("my.Learner", 3, rate=2)
    disco_client.as_completed([ref])


async def asynchronous(session: Session, rows: NDArray[np.float64]) -> None:
    assert_type(await session.function(scale)(rows), list[float])
    assert_type(await session.function(look_up)("a"), int)
    assert_type(await session.abroadcast(rows), DRef)
    assert_type(await session.ascatter(rows, tag="rows"), DRef)
    assert_type(await session.adistribute(rows, placement="S[0]"), DTensor)
    async for token in session.function(tokens)("a").stream():
        assert_type(token, int)


async def saving(session: Session, tensor: DTensor, wait: bool) -> None:
    saved = session.save("step-1", {"w": tensor}, wait=False)
    assert_type(saved, Saving)
    assert_type(saved.done, bool)
    assert_type(await saved, None)
    assert_type(session.save("step-1", {"w": tensor}, wait=wait), Saving | None)
    session.save("step-1", {"w": tensor}).wait()  # wrong
    saved.progress.done.upper()  # wrong


def operands(ref: DRef, rows: NDArray[np.float64]) -> None:
    if ref:  # wrong
        return
    np.add(ref, rows)  # wrong
    ref + rows  # wrong

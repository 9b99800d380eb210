"""Functions that make, take and return what is more than a plain array, or has yet to run."""

from __future__ import annotations

import asyncio
import tempfile
import warnings

import numpy as np

import disco_server
from disco_server.collectives.types import ReduceOp
from disco_server.rank.functions import register_func


class Length(np.ndarray):
    """An array with a unit, as packages of quantities have."""

    def __array_finalize__(self, other):
        """Takes the unit along."""
        self.unit = getattr(other, "unit", "m")


class Sparse:
    """A matrix that packages of sparse ones would have."""

    shape, dtype = (2, 2), np.dtype("float64")

    def toarray(self):
        """All of it."""
        return np.eye(2)


class Masked:
    """An array-like of another package, of which numpy makes a masked array."""

    def __array__(self, dtype=None, copy=None):
        """With its mask."""
        return np.ma.array([1.0, 2.0], mask=[False, True], dtype=dtype)


def masked(count=3):
    """Counting numbers, of which the second is masked."""
    return np.ma.array(np.arange(float(count)), mask=np.arange(count) == 1)


def length(count=3):
    """Counting numbers with a unit."""
    return np.arange(float(count)).view(Length)


def matrix():
    """Four numbers in the class that numpy advises against."""
    with warnings.catch_warnings(action="ignore"):
        return np.matrix([[1.0, 2.0], [3.0, 4.0]])


def mapped():
    """Three numbers in a file."""
    with tempfile.TemporaryFile() as file:
        file.write(np.arange(3.0).tobytes())
        file.flush()
        return np.memmap(file, "float64", "r+", shape=3)


MAKERS = {
    "masked": masked,
    "masked, large": lambda: masked(20_000),
    "no mask": lambda: np.ma.array([1.0, 2.0]),
    "masked element": lambda: np.ma.masked,
    "length": length,
    "length, large": lambda: length(20_000),
    "length without axes": lambda: length(1).reshape(()),
    "length of times": lambda: length(1).astype("m8[m]"),
    "in a list": lambda: [1, [np.zeros(2), masked()]],
    "in a dict": lambda: {"a": {"b": length()}},
    "matrix": matrix,
    "file": mapped,
    "records": lambda: np.zeros(2, [("a", "i4"), ("b", "f8")]),
    "recarray": lambda: np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "objects": lambda: np.array([1, None]),
    "sparse": Sparse,
    "NaN": lambda: np.array([1.0, np.nan]),
    "pair": lambda: (np.zeros(2), np.ones(2)),
    "nested": lambda: [np.zeros(2), {"a": (np.ones(2), "b")}],
    "read-only": lambda: np.broadcast_to(np.float32(2), (2, 3)),
    "float32": lambda: np.float32(0.1),
}


@register_func("arrays.make")
def make(kind):
    """What a maker makes."""
    return MAKERS[kind]()


@register_func("arrays.sum")
def total(*arrays, **named):
    """The sum of all elements of all arrays, those of lists and dicts too."""
    return sum(map(_total, (*arrays, *named.values())))


def _total(value):
    if isinstance(value, dict):
        return _total(list(value.values()))
    return sum(map(_total, value)) if isinstance(value, list) else float(np.sum(value))


@register_func("arrays.add_into")
def add_into(array, number):
    """Changes an array in place; returns the array."""
    array += number
    return array


@register_func("arrays.collective")
def collective(name, part, out=None):
    """One of the worker's collectives, or of a team's."""
    worker = disco_server.current_worker()
    if name in ("allreduce", "allgather"):
        return getattr(worker, name)(part, out)
    team = worker.make_teams([range(worker.num_workers)])
    out = np.empty(len(part)) if out is None else out
    if name == "broadcast":
        team.broadcast(part, out, 0)
    else:
        team.allreduce(part, out, ReduceOp.SUM)
    return out


# What has yet to run ----------------------------------------------------------------------


RAN = []


@register_func("arrays.generating")
def generator(*_args):
    """Notes that it ran."""
    RAN.append("generator")
    yield 1


RETURNING = {
    "run": lambda: asyncio.run(asyncio.sleep(0, 5)),
    "list": lambda: list(generator()),
    "map": lambda: map(str, [1, 2]),
    "iterator": lambda: iter([1, 2]),
}


@register_func("arrays.returning")
def returning(kind, *_args):
    """Returns what has run, or an iterator."""
    return RETURNING[kind]()


@register_func("arrays.next")
def advance(iterator):
    """The next item of an iterator."""
    return next(iterator)


@register_func("arrays.ran")
def ran():
    """What has run."""
    return list(RAN)


@disco_server.register_class("arrays.Model")
class Model:
    """Has a property that does not run, and a method that does."""

    @property
    def stream(self):
        """Notes that it ran."""
        RAN.append("stream")
        yield 1

    def plain(self):
        """Runs."""
        return 7

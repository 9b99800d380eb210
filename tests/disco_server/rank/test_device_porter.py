"""Arrays between commands and the device of a worker."""

from __future__ import annotations

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from disco_client.errors import EncodingError
from disco_client.wire.codec import EncodedValue, decode_value, encode_value
from disco_client.wire.values import ArrayPorter, Device
from disco_server.devices.base import DeviceUnavailable
from disco_server.devices.gpu import PIECE_BYTES
from disco_server.devices.host import HostArrays, open_arrays
from disco_server.rank.worker import DevicePorter


class Keeper(ArrayPorter):
    """Holds what it is offered, and counts in how many pieces it came."""

    def __init__(self):
        self.held = []
        self.pieces = []

    def offer(self, array):
        self.held.append(array.reshape(-1).view(np.uint8).copy())
        return len(self.held)

    def offer_pieces(self, nbytes, pieces):
        whole = [bytes(piece) for piece in pieces]
        self.pieces.append(len(whole))
        self.held.append(np.frombuffer(b"".join(whole), np.uint8).copy())
        assert self.held[-1].size == nbytes
        return len(self.held)

    def collect(self, ticket, dtype, shape):
        return self.held[ticket - 1].view(dtype).reshape(shape)

    def collect_into(self, ticket, out):
        out[...] = self.collect(ticket, out.dtype, out.shape)


@pytest.fixture
def keeper():
    """What carries host arrays."""
    return Keeper()


@pytest.fixture
def host(keeper):
    """The porter of a worker on a CPU."""
    return DevicePorter(SimpleNamespace(arrays=HostArrays(Device("cpu", 0))), keeper)


@pytest.fixture
def gpu(standin, keeper):
    """The porter of a worker on a GPU of the stand-in."""
    arrays = open_arrays(Device("cuda", 1))
    arrays.attach()
    return DevicePorter(SimpleNamespace(arrays=arrays), keeper)


def travel(porter, value):
    """A value on its way to the client; read there."""
    out = EncodedValue()
    encode_value(out, value, porter)
    return decode_value(out, porter._inner)


def arrive(porter, value):
    """A value on its way from the client, where inline arrays are plain."""
    out = EncodedValue()
    encode_value(out, value, porter._inner)
    return decode_value(out, porter)


@pytest.mark.parametrize("size", [0, 3, 5000])
def test_host_arrays_of_a_worker_on_a_cpu_pass_through(host, keeper, size):
    """Inside a command or beside it, both ways."""
    array = np.arange(size, dtype=np.int32)

    assert travel(host, array).tolist() == array.tolist()
    came = arrive(host, array)
    assert type(came) is np.ndarray
    assert came.tolist() == array.tolist()
    assert not host.knows(array)
    assert keeper.pieces == []


@pytest.mark.parametrize("dtype", [bool, np.float16, ml_dtypes.bfloat16, np.complex128])
@pytest.mark.parametrize("shape", [(), (0, 3), (3, 5), (100, 99)])
def test_arrays_of_the_standin_travel_both_ways(gpu, standin, shape, dtype):
    """What comes lies on the worker's GPU, what goes arrives as it was there."""
    array = (np.arange(np.prod(shape)) % 7).astype(dtype).reshape(shape)
    there = arrive(gpu, array)

    assert type(there) is standin.ndarray
    assert there.device.id == 1
    assert gpu.knows(there)
    back = travel(gpu, there)
    assert (back.shape, back.dtype) == (array.shape, array.dtype)
    assert back.tobytes() == array.tobytes()


def test_large_arrays_of_the_standin_go_piece_by_piece(gpu, keeper):
    """Without a second copy of the whole on the host; strided ones as they read."""
    array = np.random.default_rng(1).integers(0, 256, 2 * PIECE_BYTES + 2, np.uint8)
    there = gpu._worker.arrays.from_host(array)

    assert np.array_equal(travel(gpu, there), array)
    assert np.array_equal(travel(gpu, there[::-2]), array[::-2])
    assert keeper.pieces == [3, 2]


def test_arrays_of_the_standin_travel_inside_lists_and_maps(gpu, standin):
    """However deep they are."""
    small, large = np.arange(3.0), np.arange(5000.0)
    value = {"a": [small, {"b": large}], "c": 1}
    there = arrive(gpu, value)

    assert type(there["a"][0]) is type(there["a"][1]["b"]) is standin.ndarray
    back = travel(gpu, there)
    assert back["a"][0].tolist() == small.tolist()
    assert back["a"][1]["b"].tolist() == large.tolist()
    assert back["c"] == 1


def test_an_upload_fills_an_array_of_the_standin_where_it_is(gpu, keeper, standin):
    """And one of the host too, which such a worker may have as well."""
    ticket = keeper.offer(np.arange(6, dtype=np.int16))
    there, here = standin.zeros(6, np.int16), np.zeros(6, np.int16)
    gpu.collect_into(ticket, there)
    gpu.collect_into(ticket, here)

    assert there.get().tolist() == here.tolist() == list(range(6))


def test_a_dtype_that_the_standin_lacks_does_not_arrive(gpu):
    """The command that brings it fails with the device's name, the worker does not."""
    for size in (3, 5000):
        with pytest.raises(DeviceUnavailable, match="cuda:1 holds no arrays of float8_e5m2"):
            arrive(gpu, np.zeros(size, ml_dtypes.float8_e5m2))


def test_a_client_in_the_same_process_gets_no_arrays_of_the_standin(gpu, standin):
    """In lists, tuples and maps numpy's stand in their places, everything else is itself."""
    thing = object()
    there = standin.arange(3)
    value = [there, (there, thing), {"k": [there]}, 5]
    got = gpu.shared(value)

    assert [type(got[0]), type(got[1][0]), type(got[2]["k"][0])] == [np.ndarray] * 3
    assert got[1][1] is thing
    assert got[0].tolist() == [0, 1, 2]
    assert gpu.shared(thing) is thing


class Shy:
    """Raises where it should describe itself."""

    def __repr__(self):
        raise RuntimeError


def test_a_client_in_the_same_process_gets_keys_without_a_repr(host):
    """Nothing of a value is printed that is not refused, and then what there is of it."""
    shy, masked = Shy(), np.ma.array([1.0], mask=True)
    assert host.copied({shy: [1]}) == {shy: [1]}
    with pytest.raises(EncodingError, match=r"^at \['a'\]\[<its repr raised RuntimeError>\]: "):
        host.copied({"a": {shy: masked}})

"""What a session computes with, beside what the properties of test_dtensor show."""

from __future__ import annotations

import numpy as np
import pytest

from disco_client import ConfigError, EncodingError, ForeignReference, ProcessSession
from disco_client.distributed import DeviceMesh

ROW = [1, 2, 3, 4, 5, 6]


@pytest.fixture
def x(workers):
    """A tensor whose rows are split."""
    return workers.distribute(np.ones((4, 6), "float32"), workers.mesh(), "S[0]")


def test_calls_alike_are_worked_out_once(workers, x):
    """Another value of the same kind is not; a number of another type is."""
    engine = workers._engine
    y = x + x
    before = engine._found.cache_info()
    assert (x + y).dtype == np.float32
    assert engine._found.cache_info().misses == before.misses
    x.redistribute("R")
    ways = engine._ways.cache_info()
    (x + y).redistribute("R")
    assert engine._ways.cache_info().misses == ways.misses
    n = x.astype("int32")
    assert ((n * 2).dtype, (n * 2.0).dtype, (n * True).dtype) == (
        *(np.dtype("int32"), np.dtype("float64"), np.dtype("int32")),
    )


def test_the_communicators_of_an_axis_are_made_once(workers):
    """However many tensors move along it."""
    mesh = DeviceMesh((2, 2), [3, 2, 1, 0])
    teams = workers._engine.executor._teams
    for shape in ((4, 4), (6, 2)):
        workers.distribute(np.ones(shape), mesh, "S[0], R").redistribute("S[1], R").numpy()
    assert [key for key in teams if key[0][0] == 3] == [((3, 1), (2, 0))]


def test_tensors_of_another_session_are_refused(workers, x):
    """Also where their mesh looks the same."""
    with ProcessSession(4) as other:
        y = other.distribute(np.ones((4, 6), "float32"), other.mesh(), "S[0]")
        with pytest.raises(ForeignReference):
            x + y
        np.testing.assert_array_equal((y + 1).numpy(), np.full((4, 6), 2))
    np.testing.assert_array_equal((x + 1).numpy(), np.full((4, 6), 2))


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (lambda x, s: s.apply("sum", x, x), ConfigError, "sum on distributed tensors: too many"),
        (lambda x, s: s.apply("sum", x, axes=1), ConfigError, "unexpected keyword argument 'axes'"),
        (lambda x, s: s.apply("clip", x, 1, 2, 3), ConfigError, "clip on distributed tensors: too"),
        (lambda x, s: s.apply("relu"), ConfigError, "relu needs distributed tensors on one mesh"),
        (lambda x, s: s.apply("add", 1, 2), ConfigError, "add needs distributed tensors"),
        (lambda x, s: s.apply("add", x, {}), TypeError, "an array or a number, got {}"),
        (lambda x, s: x * [[1, 2], [3]], EncodingError, "inhomogeneous"),
        (lambda x, s: x - ["text"], TypeError, "numpy.subtract: "),
        (lambda x, s: x + None, TypeError, "'DTensor' and 'NoneType'"),
        (lambda x, s: x @ 2, ConfigError, "matmul needs tensors with axes, got the number 2"),
        (lambda x, s: np.add(x, {}), TypeError, "did not contain a loop|NotImplemented"),
        (lambda x, s: x + np.array(["text"]), ConfigError, "dtype|text"),
        (lambda x, s: s.distribute(np.array([None])), EncodingError, "Python's objects"),
        (lambda x, s: x & x, ConfigError, "numpy.bitwise_and: "),
        (lambda x, s: x.astype("int8") + 300, OverflowError, "300"),
    ],
)
def test_what_does_not_fit_is_refused(workers, x, wrong, error, text):
    """In the words of whoever called, and the session computes on."""
    with pytest.raises(error, match=text):
        wrong(x, workers)
    assert float(x.sum()) == 24


def test_a_comparison_with_what_is_no_number_is_pythons(x):
    """Nothing is equal to it."""
    assert (x == None) is False  # noqa: E711
    assert (x != "text") is True


def test_partial_integers_are_combined_before_they_change_their_dtype(workers):
    """Parts may go round at the end of a dtype where their sum does not."""
    mesh = workers.mesh()
    one, other = np.array([200, 3], "uint8"), np.array([100, 5], "uint8")
    a, b = (workers.distribute(each, mesh, "P") for each in (one, other))
    difference = other - one
    assert str((b - a).placement) == "P[sum]"
    for compute in (
        lambda y: y / 2,
        lambda y: y * 2.5,
        lambda y: y.sum(),
        lambda y: y @ np.ones((2, 2), "float32"),
        lambda y: np.concatenate([y, np.ones(1, "float32")]),
    ):
        np.testing.assert_allclose(compute(b - a).numpy(), compute(difference))


def test_partial_truth_is_counted_once(workers):
    """Where several workers say so."""
    one = np.ones((2, 8), bool)
    x = workers.distribute(one, workers.mesh(), "S[1]") @ np.ones((8, 2), bool)
    assert str(x.placement) == "P[sum]"
    assert x.sum().item() == 4
    assert (x * 3).numpy().tolist() == [[3, 3], [3, 3]]


def test_complex_numbers_have_a_largest(workers):
    """In numpy's order, wherever they lie."""
    array = np.array([1 + 2j, 3 - 1j, 3 + 1j, -9j])
    x = workers.distribute(array, workers.mesh(), "S[0]")
    assert x.max().item() == array.max()
    assert x.min().item() == array.min()


def test_a_tensor_is_distributed_again(workers, x):
    """To another mesh, by way of the host."""
    other = workers.distribute(x, DeviceMesh((2,), [3, 0]), "S[1]")
    np.testing.assert_array_equal(other.numpy(), np.ones((4, 6)))
    assert other.shard(3).shape == (4, 3)


def test_python_objects_cannot_travel(workers):
    """They are refused where they come in."""
    with pytest.raises((ConfigError, EncodingError), match="dtype"):
        workers.distribute(np.zeros(3, object), workers.mesh(), "S[0]")

"""``session.numpy.random``: the same tensors on any number of workers, wherever they lie."""

import copy
import inspect
import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_client import CaptureError, ConfigError, ProcessSession, RemoteError, ThreadedSession
from disco_client.distributed import PlacementSpec
from disco_client.distributed.draws import BLOCK
from disco_client.distributed.random import RandomGenerator
from disco_client.errors import EncodingError

COV = [[2.0, 0.5], [0.5, 1.0]]
CALLS = {
    "random": lambda r, **o: r.random((300, 7), **o),
    "random, single": lambda r, **o: r.random((300, 7), dtype="float32", **o),
    "uniform": lambda r, **o: r.uniform(-1, 2, (300, 7), **o),
    "standard_normal": lambda r, **o: r.standard_normal((300, 7), **o),
    "standard_normal, single": lambda r, **o: r.standard_normal((300, 7), np.float32, **o),
    "normal": lambda r, **o: r.normal(1, 2, (300, 7), **o),
    "lognormal": lambda r, **o: r.lognormal(size=(300, 7), **o),
    "standard_exponential": lambda r, **o: r.standard_exponential((300, 7), **o),
    "standard_exponential, inv": lambda r, **o: r.standard_exponential(
        (300, 7), np.float32, "inv", **o
    ),
    "exponential": lambda r, **o: r.exponential(3, (300, 7), **o),
    "standard_gamma": lambda r, **o: r.standard_gamma(2, (300, 7), **o),
    "standard_gamma, single": lambda r, **o: r.standard_gamma(2, (300, 7), "float32", **o),
    "gamma": lambda r, **o: r.gamma(2, 3, (300, 7), **o),
    "beta": lambda r, **o: r.beta(2, 3, (300, 7), **o),
    "chisquare": lambda r, **o: r.chisquare(2, (300, 7), **o),
    "noncentral_chisquare": lambda r, **o: r.noncentral_chisquare(2, 1, (300, 7), **o),
    "f": lambda r, **o: r.f(2, 3, (300, 7), **o),
    "noncentral_f": lambda r, **o: r.noncentral_f(2, 3, 1, (300, 7), **o),
    "standard_t": lambda r, **o: r.standard_t(5, (300, 7), **o),
    "standard_cauchy": lambda r, **o: r.standard_cauchy((300, 7), **o),
    "gumbel": lambda r, **o: r.gumbel(size=(300, 7), **o),
    "laplace": lambda r, **o: r.laplace(size=(300, 7), **o),
    "logistic": lambda r, **o: r.logistic(size=(300, 7), **o),
    "pareto": lambda r, **o: r.pareto(3, (300, 7), **o),
    "power": lambda r, **o: r.power(3, (300, 7), **o),
    "weibull": lambda r, **o: r.weibull(3, (300, 7), **o),
    "rayleigh": lambda r, **o: r.rayleigh(size=(300, 7), **o),
    "triangular": lambda r, **o: r.triangular(0, 1, 3, (300, 7), **o),
    "vonmises": lambda r, **o: r.vonmises(0, 1, (300, 7), **o),
    "wald": lambda r, **o: r.wald(1, 2, (300, 7), **o),
    "binomial": lambda r, **o: r.binomial(10, 0.3, (300, 7), **o),
    "negative_binomial": lambda r, **o: r.negative_binomial(10, 0.3, (300, 7), **o),
    "geometric": lambda r, **o: r.geometric(0.3, (300, 7), **o),
    "hypergeometric": lambda r, **o: r.hypergeometric(5, 6, 7, (300, 7), **o),
    "logseries": lambda r, **o: r.logseries(0.3, (300, 7), **o),
    "poisson": lambda r, **o: r.poisson(3, (300, 7), **o),
    "zipf": lambda r, **o: r.zipf(3, (300, 7), **o),
    "integers": lambda r, **o: r.integers(-5, 100, (300, 7), **o),
    "integers, one end": lambda r, **o: r.integers(100, size=(300, 7), dtype="int16", **o),
    "multinomial": lambda r, **o: r.multinomial(9, [0.2, 0.3, 0.5], 300, **o),
    "multinomial, arrays": lambda r, **o: r.multinomial(
        np.arange(300), np.full((300, 3), 1 / 3), **o
    ),
    "dirichlet": lambda r, **o: r.dirichlet([1, 2, 3], (30, 4), **o),
    "multivariate_normal": lambda r, **o: r.multivariate_normal([1, 2], COV, 300, **o),
    "multivariate_normal, eigh": lambda r, **o: r.multivariate_normal(
        [1, 2], COV, 300, method="eigh", **o
    ),
    "multivariate_hypergeometric": lambda r, **o: r.multivariate_hypergeometric(
        [3, 4, 5], 6, 300, **o
    ),
    "permutation": lambda r, **o: r.permutation(2100, **o),
    "permutation, rows": lambda r, **o: r.permutation(np.arange(2100).reshape(300, 7), **o),
    "permutation, columns": lambda r, **o: r.permutation(np.eye(9, 7), 1, **o),
    "permuted": lambda r, **o: r.permuted(np.arange(2100).reshape(300, 7), **o),
    "permuted, columns": lambda r, **o: r.permuted(np.eye(300, 7), axis=0, **o),
    "permuted, rows": lambda r, **o: r.permuted(np.eye(300, 7), axis=-1, **o),
    "choice": lambda r, **o: r.choice(50, (300, 7), **o),
    "choice, p": lambda r, **o: r.choice(3, (300, 7), p=[0.1, 0, 0.9], **o),
    "choice, once": lambda r, **o: r.choice(5000, (300, 7), replace=False, **o),
    "choice, once, p": lambda r, **o: r.choice(
        400, 300, False, np.arange(400) / 79800, shuffle=False, **o
    ),
    "choice, of rows": lambda r, **o: r.choice(np.arange(20).reshape(10, 2), 300, **o),
    "choice, of columns": lambda r, **o: r.choice(np.eye(4, 9), (3, 2), axis=1, **o),
    "no axes": lambda r, **o: r.normal(3),
    "no elements": lambda r, **o: r.normal(3, size=(0, 4), **o),
    "an axis": lambda r, **o: r.random(13, **o),
    "parameters": lambda r, **o: r.normal(np.arange(7), np.ones((300, 1)), **o),
    "parameters, one": lambda r, **o: r.poisson(np.arange(7), (300, 7), **o),
    "parameters, large": lambda r, **o: r.normal(np.arange(21000).reshape(-1, 7), 1, **o),
    "blocks": lambda r, **o: r.random(3 * BLOCK + 5, **o),
    "blocks, integers": lambda r, **o: r.integers(0, 9, (BLOCK // 4, 9), dtype="uint8", **o),
    "blocks, rows": lambda r, **o: r.multinomial(5, [0.5, 0.5], BLOCK + 3, **o),
    "blocks, three axes": lambda r, **o: r.normal(size=(3, BLOCK // 8, 11), **o),
    "blocks, wide": lambda r, **o: r.random((3, 2 * BLOCK), **o),
}


@pytest.fixture(scope="module")
def session():
    with ThreadedSession(3) as shared:
        yield shared


@pytest.fixture(scope="module")
def alone():
    """One worker, whose tensors the others' are compared with."""
    with ThreadedSession(1) as shared:
        yield shared


@pytest.fixture(scope="module", params=[2, 4, 5])
def others(request):
    with ThreadedSession(request.param) as shared:
        yield shared


def rng(session, seed=7):
    return session.numpy.random.default_rng(seed)


def same(got, want):
    """The same bits, shape and dtype."""
    want = np.asarray(want)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert got.numpy().tobytes() == want.tobytes()


@pytest.mark.parametrize("name", CALLS)
def test_any_number_of_workers_draws_the_same(alone, others, name):
    """Bit by bit, split along the first axis."""
    call = CALLS[name]
    same(call(rng(others)), call(rng(alone)).numpy())


@pytest.mark.parametrize("placement", ["R", "S[-1]", "P"])
@pytest.mark.parametrize("name", CALLS)
def test_any_placement_has_the_same(alone, session, name, placement):
    """Bit by bit, and the result lies as asked for."""
    call = CALLS[name]
    got = call(rng(session), placement=placement)
    same(got, call(rng(alone)).numpy())
    spec = got.placement.dim_specs[0]
    if got.ndim:
        assert (spec.is_partial, spec.is_replica) == (placement == "P", placement == "R")


@pytest.mark.parametrize("name", CALLS)
def test_a_mesh_of_two_axes_has_the_same(alone, others, name):
    """Bit by bit, also where both of its axes split a tensor, and where it has not all workers."""
    call = CALLS[name]
    want = call(rng(alone)).numpy()
    mesh = others.mesh((2, others.num_workers // 2))
    for placement in ("S[0], S[-1]", "S[0], S[0]", "S[-1], R"):
        xp = others.numpy(mesh=mesh, placement=placement)
        same(call(xp.random.default_rng(7)), want)


def test_processes_draw_the_same(alone):
    """All of the calls, in processes of their own."""
    with ProcessSession(2) as session:
        for call in CALLS.values():
            same(call(rng(session)), call(rng(alone)).numpy())


@given(data=st.data())
@settings(max_examples=60)
def test_given_parts_have_the_same(alone, session, data):
    """Of any shape, cut anywhere along any axis."""
    shape = tuple(data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=4)))
    shape = (*shape, data.draw(st.sampled_from([1, 3, 2000])))
    axis = data.draw(st.integers(0, len(shape) - 1))
    extent = shape[axis]
    if math.prod(shape) > 8 * BLOCK:
        shape = shape[-2:]
        axis, extent = 0, shape[0]
    cuts = data.draw(st.lists(st.integers(0, extent), min_size=5, max_size=5).map(sorted))
    ends = [0, *cuts, extent]
    owners = data.draw(st.lists(st.integers(0, 2), min_size=6, max_size=6))
    parts = [
        [(ends[at], ends[at + 1]) for at in range(6) if owners[at] == worker] for worker in range(3)
    ]
    placement = str(PlacementSpec.explicit(axis, parts))
    name = data.draw(st.sampled_from(["random", "integers", "with rows", "with parameters"]))
    calls = {
        "random": lambda r, **o: r.random(shape, **o),
        "integers": lambda r, **o: r.integers(0, 200, shape, dtype="uint8", **o),
        "with rows": lambda r, **o: r.multinomial(
            3, np.full(shape[-1], 1 / shape[-1]), shape[:-1], **o
        ),
        "with parameters": lambda r, **o: r.normal(np.arange(shape[-1]), size=shape, **o),
    }
    same(calls[name](rng(session), placement=placement), calls[name](rng(alone)).numpy())


DTYPES = ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]


@pytest.mark.parametrize("dtype", DTYPES)
def test_integers_reach_both_ends_of_a_dtype(alone, session, dtype):
    """With ``endpoint``, or with a range that ends behind the last one."""
    kind = np.dtype(dtype)
    limits = (0, 1) if dtype == "bool" else (np.iinfo(kind).min, np.iinfo(kind).max)
    low, high = map(int, limits)
    got = rng(session).integers(low, high, 3000, dtype=kind, endpoint=True)
    same(got, rng(alone).integers(low, high, 3000, kind, endpoint=True).numpy())
    same(rng(session).integers(low, high + 1, 3000, dtype), got.numpy())
    middle = got.numpy().astype("float64").mean()
    assert abs(middle - (low + high) / 2) < (high - low) / 20
    lows = np.array([low, high - 1], kind)
    few = rng(session).integers(lows, high, (500, 2), kind, endpoint=True).numpy()
    assert set(few[:, 1].tolist()) == {high - 1, high} or dtype == "bool"


MOMENTS = {
    "random": (lambda r, n: r.random(n), 1 / 2, 1 / 12),
    "standard_normal": (lambda r, n: r.standard_normal(n), 0, 1),
    "normal, single": (lambda r, n: r.standard_normal(n, dtype="float32"), 0, 1),
    "normal": (lambda r, n: r.normal(3, 2, n), 3, 4),
    "exponential": (lambda r, n: r.exponential(2, n), 2, 4),
    "gamma": (lambda r, n: r.gamma(3, 2, n), 6, 12),
    "poisson": (lambda r, n: r.poisson(4, n), 4, 4),
    "binomial": (lambda r, n: r.binomial(10, 0.5, n), 5, 2.5),
    "integers": (lambda r, n: r.integers(1, 7, n), 3.5, 35 / 12),
    "choice": (lambda r, n: r.choice([1.0, 3.0], n), 2, 1),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_moments_are_those_of_the_distribution(session, name):
    """Of many blocks, to a few standard errors."""
    call, mean, variance = MOMENTS[name]
    count = 6 * BLOCK
    values = call(rng(session, 11), count).numpy().astype("float64")
    assert abs(values.mean() - mean) < 5 * math.sqrt(variance / count)
    assert abs(values.var() / variance - 1) < 0.05


def test_uniform_numbers_are_distributed_evenly(session):
    """By the test of Kolmogorov and Smirnov, with a bound that one in 10,000 goes beyond."""
    values = np.sort(rng(session, 12).random(4 * BLOCK).numpy())
    ranks = np.arange(len(values)) / len(values)
    assert np.abs(values - ranks).max() < 2.2 / math.sqrt(len(values))


def test_nothing_is_drawn_twice(session):
    """Not by two blocks, two calls, two seeds, or a generator and what it spawned."""
    one = rng(session)
    several = [one, rng(session, 8), *one.spawn(2), *one.spawn(1)]
    drawn = [each.random(3 * BLOCK, placement="R").numpy() for each in several for _ in range(2)]
    assert len(np.unique(np.concatenate(drawn))) == len(drawn) * 3 * BLOCK
    assert one.bytes(16) != one.bytes(16)
    assert len(one.bytes(5)) == 5


def test_the_numbers_stay_those_of_this_release(session):
    """A seed gives in later releases what it gives in this one."""
    one = rng(session, 2024)
    key = np.random.SeedSequence(2024).generate_state(2, np.uint64)
    for number in range(2):
        blocks = [
            np.random.Generator(
                np.random.Philox(key=key, counter=np.array([0, 0, block, number], np.uint64))
            ).standard_normal(length)
            for block, length in ((0, BLOCK), (1, 10))
        ]
        same(one.standard_normal(BLOCK + 10), np.concatenate(blocks))
    assert BLOCK == 32768


def test_seeds_are_numpys(session):
    """Integers, several of them, seed sequences, generators, and none."""
    xp = session.numpy
    again = xp.random.default_rng(np.random.SeedSequence(7))
    same(again.random(4), rng(session).random(4).numpy())
    same(rng(session, [1, 2]).random(4), rng(session, np.array([1, 2])).random(4).numpy())
    assert xp.random.default_rng(again) is again
    same(xp.random.default_rng(xp.random.SeedSequence(5)).random(3), rng(session, 5).random(3))
    assert rng(session, None).random().item() != rng(session, None).random().item()
    assert repr(rng(session)) == "RandomGenerator(Philox) after 0 draws"


@pytest.mark.parametrize("seed", [5, [1, 2, 3], None])
def test_a_state_is_saved_and_restored(session, seed):
    """As plain values, with what was drawn and spawned."""
    one = rng(session, seed).spawn(1)[0]
    one.random(3)
    one.spawn(2)
    saved = json.loads(json.dumps(one.state))
    want, child = one.random(5).numpy(), one.spawn(1)[0].random(5).numpy()
    other = rng(session, 99)
    other.state = saved
    same(other.random(5), want)
    same(other.spawn(1)[0].random(5), child)


def test_copies_go_on_by_themselves(session):
    """From where the generator was; there is no pickle, but one of the state."""
    one = rng(session)
    one.random(2)
    first, second = copy.copy(one), copy.deepcopy(one)
    want = one.random(6).numpy()
    same(first.random(6), want)
    same(second.random(6), want)
    with pytest.raises(EncodingError, match="its state can"):
        pickle.dumps(one)


def test_methods_and_their_arguments_are_numpys():
    """All that numpy's generator has but its bit generator; ``placement`` comes on top."""
    names = {name for name in dir(np.random.Generator) if name[0] != "_"} - {"bit_generator"}
    assert names <= set(dir(RandomGenerator))
    for name in names:
        try:
            want = inspect.signature(getattr(np.random.Generator, name))
        except ValueError:  # a numpy that does not say
            continue
        got = inspect.signature(getattr(RandomGenerator, name))
        mine = [each for each in got.parameters.values() if each.name != "placement"]
        assert [(each.name, each.kind, each.default) for each in mine] == [
            (each.name, each.kind, each.default) for each in want.parameters.values()
        ], name


@pytest.mark.parametrize("placement", ["R", "S[0]", "S[1]", "P", "S[0: 0-5000, -, 5000-20000]"])
def test_parameters_may_be_distributed_tensors(alone, session, placement):
    """They count as the arrays of their values do, wherever they lie."""
    loc = np.arange(60000.0).reshape(20000, 3)
    scale = session.distribute(np.arange(3.0), placement="S[0]")
    mean = session.distribute(loc, placement="S[0]").redistribute(placement)
    want = rng(alone).normal(loc, np.arange(3.0)).numpy()
    for asked in ("S[0]", "S[1]", "R"):
        same(rng(session).normal(mean, scale, placement=asked), want)
    counts = session.distribute(np.arange(20000), placement="S[0]")
    want = rng(alone).multinomial(np.arange(20000), [0.5, 0.5]).numpy()
    same(rng(session).multinomial(counts, [0.5, 0.5]), want)


@pytest.mark.parametrize("placement", ["R", "S[0]", "S[1]", "P", "S[0: 3-9, -, 0-3]"])
def test_a_tensor_is_put_into_another_order(alone, session, placement):
    """Along each axis, line by line, or all of it; by default it lies as before."""
    host = np.arange(45.0).reshape(9, 5)
    x = session.distribute(host, placement="S[0]").redistribute(placement)
    for call in (
        lambda r, x: r.permutation(x),
        lambda r, x: r.permutation(x, axis=1),
        lambda r, x: r.permuted(x),
        lambda r, x: r.permuted(x, axis=0),
        lambda r, x: r.permuted(x, axis=1),
    ):
        got = call(rng(session), x)
        same(got, call(rng(alone), host).numpy())
        assert got.placement == x.placement.combined()
        np.testing.assert_array_equal(np.sort(got.numpy(), axis=None), host.reshape(-1))
    for call in (
        lambda r, x: r.choice(x, 7, axis=1),
        lambda r, x: r.choice(x),
        lambda r, x: r.choice(x, (2, 3), replace=False),
    ):
        same(call(rng(session), x), call(rng(alone), host).numpy())


def test_each_order_keeps_what_it_should(session):
    """Permutations hold all; lines keep theirs; nothing is chosen again without replacement."""
    one = rng(session)
    host = np.arange(3000).reshape(100, 30)
    x = session.distribute(host, placement="S[0]")
    assert sorted(one.permutation(1000).tolist()) == list(range(1000))
    np.testing.assert_array_equal(np.sort(one.permuted(x, axis=1).numpy(), axis=1), host)
    np.testing.assert_array_equal(np.sort(one.permuted(x, axis=0).numpy(), axis=0), host)
    rows = one.permutation(x).numpy()
    np.testing.assert_array_equal(rows[np.argsort(rows[:, 0])], host)
    assert len(set(one.choice(1000, 600, replace=False).tolist())) == 600


def test_a_tensor_is_shuffled(session):
    """Where it is; other tensors keep their values, and a capture refuses it."""
    host = np.arange(12.0).reshape(6, 2)
    x = session.distribute(host, placement="S[0]")
    before = x[:3]
    rng(session).shuffle(x)
    same(x, rng(session).permutation(host).numpy())
    same(before, host[:3])
    with pytest.raises(CaptureError), session.capture("shuffled"):
        rng(session).shuffle(x)


def test_a_captured_program_draws_the_same_each_time(session):
    """As all that it makes, a draw was decided when it was captured."""
    one = rng(session)
    like = session.numpy.zeros(6)
    with session.capture("noisy") as program:
        program.output(program.input("x", like=like) + one.normal(size=6))
    first = program(like).numpy()
    np.testing.assert_array_equal(program(like).numpy(), first)
    assert not np.array_equal(one.normal(size=6).numpy(), first)


def test_rows_are_drawn_where_that_is_cheaper(session):
    """Of a split across the blocks, which `explain` says; elsewhere nothing moves."""
    one = rng(session)
    across = one.random((20 * BLOCK // 8, 8), placement="S[1]")
    assert across.origin.name == "random"
    assert [which for which, _ in across.origin.moves] == ["redistribute, moved"]
    for placement, shape in (("S[0]", (BLOCK, 8)), ("S[1]", (100, 8)), ("S[1]", (3, 9 * BLOCK))):
        assert not one.random(shape, placement=placement).origin.moves


def test_what_the_workers_alone_can_see_fails_there(session):
    """Wrong values of a distributed tensor are numpy's error on the workers."""
    scale = session.distribute(np.array([1.0, -1.0]), placement="S[0]")
    with pytest.raises(RemoteError, match="scale < 0"):
        rng(session).normal(0, scale).numpy()


REFUSED = {
    "normal(0, -1, 3)": (lambda r, x: r.normal(0, -1, 3), ValueError, "scale < 0"),
    "normal(0, [1, -1])": (lambda r, x: r.normal(0, [1, -1]), ValueError, "scale < 0"),
    "normal(x, -1)": (lambda r, x: r.normal(x, -1), ValueError, "scale < 0"),
    "binomial(5, 1.5, 3)": (lambda r, x: r.binomial(5, 1.5, 3), ValueError, "p > 1"),
    "integers(5, 5)": (lambda r, x: r.integers(5, 5), ValueError, "low >= high"),
    "integers([1, 2], [3, 2])": (
        lambda r, x: r.integers([1, 2], [3, 2]),
        ValueError,
        "low >= high",
    ),
    "integers(300, dtype='int8')": (
        lambda r, x: r.integers(300, dtype="int8"),
        ValueError,
        "out of bounds for int8",
    ),
    "integers(3, dtype='float32')": (
        lambda r, x: r.integers(3, dtype="float32"),
        TypeError,
        "Unsupported dtype",
    ),
    "random(3, dtype='int32')": (
        lambda r, x: r.random(3, dtype="int32"),
        TypeError,
        "Unsupported dtype",
    ),
    "multinomial(3, [0.9, 0.9, 0.1])": (
        lambda r, x: r.multinomial(3, [0.9, 0.9, 0.1]),
        ValueError,
        "> 1",
    ),
    "dirichlet([-1, 1])": (lambda r, x: r.dirichlet([-1, 1]), ValueError, "alpha"),
    "multivariate_normal([0, 0], -np.eye(2), check_valid='raise')": (
        lambda r, x: r.multivariate_normal([0, 0], -np.eye(2), check_valid="raise"),
        ValueError,
        "positive-semidefinite",
    ),
    "multinomial(3, x)": (
        lambda r, x: r.multinomial(3, x),
        ConfigError,
        "takes no distributed tensor",
    ),
    "normal([1, 2], [1, 2, 3])": (
        lambda r, x: r.normal([1, 2], [1, 2, 3]),
        ConfigError,
        "cannot be broadcast together",
    ),
    "normal([1, 2], size=3)": (
        lambda r, x: r.normal([1, 2], size=3),
        ConfigError,
        "broadcast to size",
    ),
    "normal([1, 2], size=(2, 1))": (
        lambda r, x: r.normal([1, 2], size=(2, 1)),
        ConfigError,
        "broadcast to size",
    ),
    "random(-1)": (lambda r, x: r.random(-1), ConfigError, "extents from 0"),
    "random(2.5)": (lambda r, x: r.random(2.5), TypeError, "expected integers"),
    "random(3, out=np.zeros(3))": (
        lambda r, x: r.random(3, out=np.zeros(3)),
        ConfigError,
        "cannot write",
    ),
    "permuted(x, out=x)": (lambda r, x: r.permuted(x, out=x), ConfigError, "cannot write"),
    "gamma()": (lambda r, x: r.gamma(), TypeError, "missing a required argument: 'shape'"),
    "normal(mean=1)": (
        lambda r, x: r.normal(mean=1),
        TypeError,
        "unexpected keyword argument 'mean'",
    ),
    "normal(1, 1, 3, placement='S[1]')": (
        lambda r, x: r.normal(1, 1, 3, placement="S[1]"),
        ConfigError,
        "does not have",
    ),
    "permutation(-1)": (lambda r, x: r.permutation(-1), ConfigError, "from 0, got -1"),
    "permutation(2.5)": (
        lambda r, x: r.permutation(2.5),
        TypeError,
        "expected an integer, or an array",
    ),
    "permutation(x, 1)": (lambda r, x: r.permutation(x, 1), IndexError, "axis"),
    "permuted(x, axis=1)": (lambda r, x: r.permuted(x, axis=1), IndexError, "axis"),
    "shuffle(np.arange(3))": (
        lambda r, x: r.shuffle(np.arange(3)),
        TypeError,
        "permutation makes another one",
    ),
    "choice(0, 2)": (lambda r, x: r.choice(0, 2), ValueError, "greater than 0|a must be"),
    "choice(2.5, 2)": (
        lambda r, x: r.choice(2.5, 2),
        TypeError,
        "expected an integer, or an array",
    ),
    "choice(3, 2, p=[0.5, 0.5])": (
        lambda r, x: r.choice(3, 2, p=[0.5, 0.5]),
        ValueError,
        "same size",
    ),
    "choice(2, 2, p=[0.5, 0.6])": (
        lambda r, x: r.choice(2, 2, p=[0.5, 0.6]),
        ValueError,
        "sum to 1",
    ),
    "choice(2, 2, p=x)": (lambda r, x: r.choice(2, 2, p=x), ConfigError, "takes an array as p"),
    "choice(3, 4, replace=False)": (
        lambda r, x: r.choice(3, 4, replace=False),
        ConfigError,
        "4 cannot be chosen of 3",
    ),
    "choice(3, 3, False, [0.5, 0.5, 0])": (
        lambda r, x: r.choice(3, 3, False, [0.5, 0.5, 0]),
        ConfigError,
        "3 cannot be .* of 2",
    ),
    "spawn('two')": (lambda r, x: r.spawn("two"), TypeError, "expected integers"),
    "setattr(r, 'state', {'draws': 1})": (
        lambda r, x: setattr(r, "state", {"draws": 1}),
        ConfigError,
        "expected a state with",
    ),
    "setattr(r, 'state', {**r.state, 'draws': -1})": (
        lambda r, x: setattr(r, "state", {**r.state, "draws": -1}),
        ConfigError,
        "draws from 0",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_drawn_is_refused_at_the_call(session, name):
    """By numpy's error for parameters, else by what was expected and what came; no draw counts."""
    call, error, text = REFUSED[name]
    one = rng(session)
    with pytest.raises(error, match=text):
        call(one, session.distribute(np.arange(2.0), placement="S[0]"))
    assert one.state["draws"] == 0


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda m: m.rand, AttributeError, r"numpy.random.rand draws from one state"),
        (lambda m: m.seed, AttributeError, r"default_rng\(seed\)"),
        (lambda m: m.normal, AttributeError, r"default_rng\(seed\) has rng.normal"),
        (lambda m: m.nothing, AttributeError, "has no nothing"),
        (lambda m: m.default_rng(-1), ValueError, "non-negative"),
        (lambda m: m.default_rng(np.random.default_rng(1)), TypeError, "expected a seed"),
        (lambda m: m.default_rng(np.random.PCG64(1)), TypeError, "got <.*PCG64"),
    ],
)
def test_what_numpys_module_has_besides_is_refused(session, call, error, text):
    """With the generator that has it."""
    with pytest.raises(error, match=text):
        call(session.numpy.random)

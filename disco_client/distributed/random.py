"""Generators of random tensors, with the methods of numpy's.

The tensors are made on the workers, and are the same for any number of workers, mesh and
placement. They are not what numpy's generators give for the same seed.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, NoReturn, TypeAlias, cast

import numpy as np

from disco_client.distributed.draws import (
    Draw,
    Key,
    Parameter,
    checked_sample,
    draw,
    stream,
    units_of,
)
from disco_client.distributed.dtensor import Computing, DTensor, several
from disco_client.distributed.numpy_arguments import array_of, no_out
from disco_client.distributed.ops import as_index, integers, normal_axis
from disco_client.distributed.placement import (
    DTensorStructInfo,
    Placement,
    PlacementSpec,
    TensorStructInfo,
)
from disco_client.errors import ConfigError, DtypeError, EncodingError
from disco_client.locks import make_lock

__all__ = ["RandomGenerator", "RandomNamespace"]


Lay: TypeAlias = Callable[[Any, object, "Placement | str | None"], DTensorStructInfo]
"""How a tensor of a shape and a dtype lies, with a placement or without."""

_NEEDED: Final = inspect.Parameter.empty
_OPTIONS = frozenset(["dtype", "method", "endpoint", "check_valid", "tol"])
"""What methods take besides parameters of their distributions."""
_STATE = frozenset(["entropy", "spawn_key", "pool_size", "children", "draws"])


def _drawn(
    name: str, inner: Mapping[str, int] | None = None, named: str = "", **defaults: Any
) -> Callable[..., DTensor]:
    """Makes a method that draws from a distribution.

    Args:
        name: Of the method, of numpy's generator too.
        inner: How many axes a value of a parameter has; by default none.
        named: The argument that is given by its name alone.
        **defaults: The arguments in numpy's order.
    """
    by_place = inspect.Parameter.POSITIONAL_OR_KEYWORD
    by_name = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.Signature(
        [
            inspect.Parameter("self", by_place),
            *(
                inspect.Parameter(key, by_name if key == named else by_place, default=value)
                for key, value in defaults.items()
            ),
            inspect.Parameter("placement", by_name, default=None),
        ]
    )
    axes = inner or {}

    def method(self: RandomGenerator, *args: Any, **options: Any) -> DTensor:
        bound = signature.bind(self, *args, **options)
        bound.apply_defaults()
        given = dict(bound.arguments)
        del given["self"]
        no_out(f"random.{name}", given.pop("out", None))
        size, placement = given.pop("size"), given.pop("placement")
        more = {key: given.pop(key) for key in tuple(given) if key in _OPTIONS}
        if name == "integers":
            _close(given, more)
        parameters = [Parameter(array_of(each), axes.get(key, 0)) for key, each in given.items()]
        return self.sample(name, parameters, more, size, placement)

    method.__name__ = name
    method.__qualname__ = f"RandomGenerator.{name}"
    method.__signature__ = signature  # type: ignore[attr-defined]
    method.__doc__ = (
        f"See ``numpy.random.Generator.{name}``; ``size=None`` gives the shape of the parameters."
    )
    return method


class RandomGenerator:
    """Draws random tensors on the workers; made by ``session.numpy.random.default_rng(seed)``.

    It has the methods of ``numpy.random.Generator`` with their arguments, and ``placement=``
    besides. Each call draws other numbers. What a call gives depends on the seed, on how many
    calls came before, and on the call; not on the workers, the mesh or the placement. It is not
    what numpy gives for that seed. Without a ``size`` a method gives a tensor of the shape of its
    parameters, which has no axes where they are numbers.

    Parameters are numbers, or arrays and distributed tensors that are broadcast to ``size``.
    Wrong ones are a ValueError of numpy's at the call; of distributed tensors only the workers
    see the values, so that there it is a ``RemoteError`` of whatever waits for the result.

    Args:
        engine: Computes.
        lay: Says how a tensor lies by default.
        seeds: What the key is made of.
        draws: How many calls have drawn from it.

    Examples:
        >>> rng = session.numpy.random.default_rng(7)
        >>> x = rng.normal(10.0, 2.0, size=(1000, 4))
        >>> abs(float(x.mean()) - 10) < 0.2, rng.integers(6, size=3, placement="R").shape
        (True, Shape([3]))
    """

    __slots__ = ("_draws", "_engine", "_key", "_lay", "_lock", "_seeds")

    def __init__(
        self, engine: Computing, lay: Lay, seeds: np.random.SeedSequence, draws: int = 0
    ) -> None:
        self._engine = engine
        self._lay = lay
        self._lock = make_lock()
        self._draws = draws
        self._take(seeds)

    def _take(self, seeds: np.random.SeedSequence) -> None:
        self._seeds = seeds
        low, high = seeds.generate_state(2, np.uint64)
        self._key: Key = low, high

    # The distributions, with numpy's names, arguments and defaults.

    random: ClassVar[Callable[..., DTensor]] = _drawn(
        "random", size=None, dtype=np.float64, out=None
    )
    uniform: ClassVar[Callable[..., DTensor]] = _drawn("uniform", low=0.0, high=1.0, size=None)
    integers: ClassVar[Callable[..., DTensor]] = _drawn(
        "integers", low=_NEEDED, high=None, size=None, dtype=np.int64, endpoint=False
    )
    standard_normal: ClassVar[Callable[..., DTensor]] = _drawn(
        "standard_normal", size=None, dtype=np.float64, out=None
    )
    normal: ClassVar[Callable[..., DTensor]] = _drawn("normal", loc=0.0, scale=1.0, size=None)
    lognormal: ClassVar[Callable[..., DTensor]] = _drawn(
        "lognormal", mean=0.0, sigma=1.0, size=None
    )
    standard_exponential: ClassVar[Callable[..., DTensor]] = _drawn(
        "standard_exponential", size=None, dtype=np.float64, method="zig", out=None
    )
    exponential: ClassVar[Callable[..., DTensor]] = _drawn("exponential", scale=1.0, size=None)
    standard_gamma: ClassVar[Callable[..., DTensor]] = _drawn(
        "standard_gamma", shape=_NEEDED, size=None, dtype=np.float64, out=None
    )
    gamma: ClassVar[Callable[..., DTensor]] = _drawn("gamma", shape=_NEEDED, scale=1.0, size=None)
    beta: ClassVar[Callable[..., DTensor]] = _drawn("beta", a=_NEEDED, b=_NEEDED, size=None)
    chisquare: ClassVar[Callable[..., DTensor]] = _drawn("chisquare", df=_NEEDED, size=None)
    noncentral_chisquare: ClassVar[Callable[..., DTensor]] = _drawn(
        "noncentral_chisquare", df=_NEEDED, nonc=_NEEDED, size=None
    )
    f: ClassVar[Callable[..., DTensor]] = _drawn("f", dfnum=_NEEDED, dfden=_NEEDED, size=None)
    noncentral_f: ClassVar[Callable[..., DTensor]] = _drawn(
        "noncentral_f", dfnum=_NEEDED, dfden=_NEEDED, nonc=_NEEDED, size=None
    )
    standard_t: ClassVar[Callable[..., DTensor]] = _drawn("standard_t", df=_NEEDED, size=None)
    standard_cauchy: ClassVar[Callable[..., DTensor]] = _drawn("standard_cauchy", size=None)
    gumbel: ClassVar[Callable[..., DTensor]] = _drawn("gumbel", loc=0.0, scale=1.0, size=None)
    laplace: ClassVar[Callable[..., DTensor]] = _drawn("laplace", loc=0.0, scale=1.0, size=None)
    logistic: ClassVar[Callable[..., DTensor]] = _drawn("logistic", loc=0.0, scale=1.0, size=None)
    pareto: ClassVar[Callable[..., DTensor]] = _drawn("pareto", a=_NEEDED, size=None)
    power: ClassVar[Callable[..., DTensor]] = _drawn("power", a=_NEEDED, size=None)
    weibull: ClassVar[Callable[..., DTensor]] = _drawn("weibull", a=_NEEDED, size=None)
    rayleigh: ClassVar[Callable[..., DTensor]] = _drawn("rayleigh", scale=1.0, size=None)
    triangular: ClassVar[Callable[..., DTensor]] = _drawn(
        "triangular", left=_NEEDED, mode=_NEEDED, right=_NEEDED, size=None
    )
    vonmises: ClassVar[Callable[..., DTensor]] = _drawn(
        "vonmises", mu=_NEEDED, kappa=_NEEDED, size=None
    )
    wald: ClassVar[Callable[..., DTensor]] = _drawn("wald", mean=_NEEDED, scale=_NEEDED, size=None)
    binomial: ClassVar[Callable[..., DTensor]] = _drawn("binomial", n=_NEEDED, p=_NEEDED, size=None)
    negative_binomial: ClassVar[Callable[..., DTensor]] = _drawn(
        "negative_binomial", n=_NEEDED, p=_NEEDED, size=None
    )
    geometric: ClassVar[Callable[..., DTensor]] = _drawn("geometric", p=_NEEDED, size=None)
    hypergeometric: ClassVar[Callable[..., DTensor]] = _drawn(
        "hypergeometric", ngood=_NEEDED, nbad=_NEEDED, nsample=_NEEDED, size=None
    )
    logseries: ClassVar[Callable[..., DTensor]] = _drawn("logseries", p=_NEEDED, size=None)
    poisson: ClassVar[Callable[..., DTensor]] = _drawn("poisson", lam=1.0, size=None)
    zipf: ClassVar[Callable[..., DTensor]] = _drawn("zipf", a=_NEEDED, size=None)

    # Those of which a draw is a row.

    multinomial: ClassVar[Callable[..., DTensor]] = _drawn(
        "multinomial", {"pvals": 1}, n=_NEEDED, pvals=_NEEDED, size=None
    )
    dirichlet: ClassVar[Callable[..., DTensor]] = _drawn(
        "dirichlet", {"alpha": 1}, alpha=_NEEDED, size=None
    )
    multivariate_hypergeometric: ClassVar[Callable[..., DTensor]] = _drawn(
        "multivariate_hypergeometric",
        {"colors": 1},
        colors=_NEEDED,
        nsample=_NEEDED,
        size=None,
        method="marginals",
    )
    multivariate_normal: ClassVar[Callable[..., DTensor]] = _drawn(
        "multivariate_normal",
        {"mean": 1, "cov": 2},
        named="method",
        mean=_NEEDED,
        cov=_NEEDED,
        size=None,
        check_valid="warn",
        tol=1e-8,
        method="svd",
    )

    def sample(
        self,
        name: str,
        parameters: list[Parameter],
        options: Mapping[str, Any],
        size: Any,
        placement: Placement | str | None,
    ) -> DTensor:
        """Draws from a distribution; the methods of numpy's names do.

        Args:
            name: The distribution's.
            parameters: Its parameters.
            options: Of numpy's method.
            size: An extent, or several; None for those of the parameters.
            placement: How the result lies; by default as the namespace says.
        """
        for each in parameters:
            if each.inner and isinstance(each.value, DTensor):
                raise ConfigError(
                    f"random.{name} takes no distributed tensor as a parameter that has rows; its"
                    " .numpy() is an array, which it takes"
                )
        extents = None if size is None else _extents(name, size)
        dtype, row = checked_sample(name, parameters, options)
        units = units_of(name, extents, parameters)
        if "dtype" in options:
            options = {**options, "dtype": dtype}
        if "check_valid" in options:  # of which numpy has warned here
            options = {**options, "check_valid": "ignore"}
        what = Draw(name, units, row, dtype, parameters, options)
        return self._draw(what, self._lay(what.shape, dtype, placement))

    def _next(self) -> tuple[Key, int]:
        """The key, and the number of a draw."""
        with self._lock:
            self._draws += 1
            return self._key, self._draws - 1

    def _draw(self, what: Draw, info: DTensorStructInfo) -> DTensor:
        return draw(self._engine, *self._next(), what, info)

    # Orders and choices.

    def permutation(
        self, x: Any, axis: int = 0, *, placement: Placement | str | None = None
    ) -> DTensor:
        """A tensor in another order along an axis, or the numbers below an integer in one.

        Each worker computes the order of all, which takes 8 bytes of memory an index on each.

        Args:
            x: A distributed tensor, an array, or how many numbers.
            axis: The axis.
            placement: How the result lies; by default as a distributed tensor does, else as the
                namespace says.
        """
        count = None if isinstance(x, DTensor) else as_index(x)
        if count is not None:
            if count < 0:
                raise ConfigError(f"permutation: expected a number of indices from 0, got {count}")
            what = _order(count)
            return self._draw(what, self._lay(what.shape, what.dtype, placement))
        given = array_of(x)
        if not given.ndim:
            raise DtypeError(f"permutation: expected an integer, or an array with axes, got {x!r}")
        place = normal_axis(axis, given.ndim)
        what = _order(given.shape[place])
        order = self._draw(what, self._copies(given, what))
        made = self._engine.call("take", given, order, axis=place)
        return self._placed("permutation", made, placement, given)

    def permuted(
        self,
        x: Any,
        *,
        axis: int | None = None,
        out: None = None,
        placement: Placement | str | None = None,
    ) -> DTensor:
        """The same where each line along an axis has an order of its own.

        Args:
            x: A distributed tensor or an array.
            axis: The axis; None for all elements in a row, see :meth:`permutation`.
            out: Refused.
            placement: As there.
        """
        no_out("random.permuted", out)
        given = array_of(x)
        if axis is None:
            mixed = self.permutation(given.reshape((given.size,)))
            made: Any = mixed.reshape(tuple(given.shape))
        else:
            place = normal_axis(axis, given.ndim)
            lines = np.moveaxis(given, place, -1)
            *units, extent = lines.shape
            row = Parameter(lines, 1)
            what = Draw("permuted", tuple(units), (extent,), given.dtype, [row], {})
            mixed = self._draw(what, self._like(lines, what))
            made = np.moveaxis(cast("Any", mixed), -1, place)
        return self._placed("permuted", made, placement, given, mixed)

    def shuffle(self, x: DTensor, axis: int = 0) -> None:
        """Gives a distributed tensor another order along an axis; see :meth:`permutation`.

        Raises:
            CaptureError: A program is captured.
            DtypeError: It is no distributed tensor.
        """
        if not isinstance(cast("object", x), DTensor):
            msg = f"shuffle changes a distributed tensor, got {x!r}; permutation makes another one"
            raise DtypeError(msg)
        x[...] = self.permutation(x, axis)

    def choice(
        self,
        a: Any,
        size: Any = None,
        replace: bool = True,
        p: Any = None,
        axis: int = 0,
        shuffle: bool = True,
        *,
        placement: Placement | str | None = None,
    ) -> DTensor:
        """Some of a tensor along an axis, or of the numbers below an integer.

        Without replacement each worker chooses all, which takes memory on each.

        Args:
            a: A distributed tensor, an array, or how many numbers.
            size: An extent, or several; None for one without axes.
            replace: Whether one may be chosen again.
            p: The probability of each, an array; None for equal ones.
            axis: The axis.
            shuffle: Whether the order is by chance too, where none is chosen again.
            placement: How the result lies; by default as the namespace says.
        """
        extents = () if size is None else _extents("choice", size)
        count = None if isinstance(a, DTensor) else as_index(a)
        if count is not None:
            what = _choice(count, extents, p, replace=replace, shuffle=shuffle)
            return self._draw(what, self._lay(extents, what.dtype, placement))._explained_as(
                "choice"
            )
        given = array_of(a)
        if not given.ndim:
            raise DtypeError(f"choice: expected an integer, or an array with axes, got {a!r}")
        place = normal_axis(axis, given.ndim)
        what = _choice(given.shape[place], extents, p, replace=replace, shuffle=shuffle)
        ids = self._draw(what, self._copies(given, what))
        made = self._engine.call("take", given, ids, axis=place)
        info = self._lay(made.shape, made.dtype, placement)
        placed = made.redistribute(info.device_mesh, info.placement)
        return placed._explained_as("choice", ids, made)

    def _copies(self, given: Any, what: Draw) -> DTensorStructInfo:
        """How positions are drawn that all workers of a tensor's mesh need."""
        mesh = given.mesh if isinstance(given, DTensor) else self._lay((), "bool", None).device_mesh
        copies = Placement([PlacementSpec.replica()] * mesh.ndim)
        return DTensorStructInfo(TensorStructInfo(what.shape, what.dtype), mesh, copies)

    def _like(self, given: Any, what: Draw) -> DTensorStructInfo:
        """How something of the shape of a tensor is drawn: where that one lies."""
        if not isinstance(given, DTensor):
            return self._lay(what.shape, what.dtype, None)
        whole = TensorStructInfo(what.shape, what.dtype)
        return DTensorStructInfo(whole, given.mesh, given.placement.combined())

    def _placed(
        self,
        name: str,
        made: DTensor,
        placement: Placement | str | None,
        like: Any,
        *before: DTensor,
    ) -> DTensor:
        """A result as it is to lie: by default like what it was made of."""
        if isinstance(like, DTensor):
            wanted = like.placement.combined() if placement is None else placement
        else:
            wanted = self._lay(made.shape, made.dtype, placement).placement
        return made.redistribute(wanted)._explained_as(name, *before, made)

    # On the client.

    def bytes(self, length: int) -> bytes:
        """Random bytes, drawn here: no tensor."""
        (count,) = integers("bytes", (length,))
        return stream(*self._next()).bytes(count)

    def spawn(self, n_children: int) -> list[RandomGenerator]:
        """Makes generators whose numbers have nothing to do with those of this one.

        Args:
            n_children: How many.
        """
        (count,) = integers("spawn", (n_children,))
        with self._lock:
            seeds = self._seeds.spawn(count)
        return [RandomGenerator(self._engine, self._lay, each) for each in seeds]

    @property
    def state(self) -> dict[str, Any]:
        """Where it is, in integers and lists of them, which JSON has too; it can be given back.

        Setting it goes on from there, in this session or in another one.

        Raises:
            ConfigError: What is given is no such state.
        """
        with self._lock:
            state, draws = self._seeds.state, self._draws
        entropy = as_index(state["entropy"])
        several_of: Any = state["entropy"]
        return {
            "entropy": list(map(int, several_of)) if entropy is None else entropy,
            "spawn_key": list(map(int, state["spawn_key"])),
            "pool_size": int(state["pool_size"]),
            "children": int(state["n_children_spawned"]),
            "draws": draws,
        }

    @state.setter
    def state(self, value: Mapping[str, Any]) -> None:
        if not isinstance(cast("object", value), Mapping) or {*value} != {*_STATE}:
            raise ConfigError(
                f"expected a state with {', '.join(sorted(_STATE))}, such as another generator's"
                f" state, got {value!r}"
            )
        (draws,) = integers("state", (value["draws"],))
        seeds = np.random.SeedSequence(
            value["entropy"],
            spawn_key=tuple(value["spawn_key"]),
            pool_size=value["pool_size"],
            n_children_spawned=value["children"],
        )
        if draws < 0:
            raise ConfigError(f"expected a number of draws from 0, got {draws}")
        with self._lock:
            self._take(seeds)
            self._draws = draws

    def __copy__(self) -> RandomGenerator:
        """One that draws the same numbers from here on, each by itself."""
        made = RandomGenerator(self._engine, self._lay, np.random.SeedSequence(0))
        made.state = self.state
        return made

    def __deepcopy__(self, memo: object) -> RandomGenerator:
        del memo
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise EncodingError(
            "a RandomGenerator cannot be pickled, because it draws on the workers of a session of"
            " this process; its state can, and xp.random.default_rng() takes it as its own"
        )

    def __repr__(self) -> str:
        return f"RandomGenerator(Philox) after {self._draws} draws"


def _close(given: dict[str, Any], options: dict[str, Any]) -> None:
    """Completes the range of integers; one that has no last number gets it, which has a dtype."""
    if given["high"] is None:
        given["low"], given["high"] = 0, given["low"]
    if type(given["high"]) is int and given["high"] == 1 << 64 and not options["endpoint"]:
        given["high"], options["endpoint"] = given["high"] - 1, True


def _extents(name: str, size: Any) -> tuple[int, ...]:
    found = tuple(integers(name, several(size)))
    if any(extent < 0 for extent in found):
        raise ConfigError(f"{name}: expected extents from 0, got size {found}")
    return found


_POSITIONS = np.dtype(np.int64)


def _order(count: int) -> Draw:
    """Positions in another order."""
    return Draw("permutation", (), (count,), _POSITIONS, [Parameter(np.asarray(count))], {})


def _choice(count: int, size: tuple[int, ...], p: Any, *, replace: bool, shuffle: bool) -> Draw:
    """Positions that are chosen.

    Raises:
        ConfigError: More are to be chosen than there are, and none again.
        ValueError: numpy's, of probabilities that do not sum up to 1, for example.
    """
    if isinstance(p, DTensor):
        raise ConfigError("choice takes an array as p, got a distributed tensor")
    wanted = math.prod(size)
    chances = None if p is None else np.asarray(p, np.float64)
    few = count if chances is None else int(np.count_nonzero(chances > 0))
    stream((np.uint64(0), np.uint64(0)), 0).choice(count, min(wanted, 1), p=chances)
    if replace and chances is None:
        given = [Parameter(np.asarray(0)), Parameter(np.asarray(count))]
        return Draw("integers", size, (), _POSITIONS, given, {})
    if not replace and wanted > few:
        raise ConfigError(f"choice: {wanted} cannot be chosen of {few} without choosing one again")
    given = [Parameter(np.asarray(count))]
    options: dict[str, Any] = {"replace": bool(replace), "shuffle": bool(shuffle)}
    if chances is not None:
        given.append(Parameter(chances, 1))
    units, row = (size, ()) if replace else ((), size)
    return Draw("choice", units, row, _POSITIONS, given, options)


class RandomNamespace:
    """What ``session.numpy.random`` has of ``numpy.random``: generators, which have the rest.

    Args:
        engine: Computes.
        lay: Says how a tensor lies by default.
    """

    SeedSequence: ClassVar[type[np.random.SeedSequence]] = np.random.SeedSequence

    def __init__(self, engine: Computing, lay: Lay) -> None:
        self._engine = engine
        self._lay = lay

    def default_rng(self, seed: Any = None) -> RandomGenerator:
        """Makes a generator of random tensors.

        Args:
            seed: An integer from 0 or several, a ``SeedSequence``, or a generator, which is
                returned; None for one that the operating system gives.

        Raises:
            DtypeError: It is a generator of numpy's.
            ValueError: numpy's, of a negative seed.
        """
        if isinstance(seed, RandomGenerator):
            return seed
        if isinstance(seed, (np.random.Generator, np.random.BitGenerator, np.random.RandomState)):
            raise DtypeError(
                f"expected a seed, a SeedSequence or a RandomGenerator, got {seed!r}, whose numbers"
                " are drawn here one after the other"
            )
        seeds = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        return RandomGenerator(self._engine, self._lay, seeds)

    def __getattr__(self, name: str) -> NoReturn:
        instead = f"rng.{name}" if hasattr(RandomGenerator, name) else "the methods of numpy's"
        msg = (
            f"numpy.random.{name} draws from one state, which the workers do not have:"
            f" rng = xp.random.default_rng(seed) has {instead}"
        )
        if name.startswith("_") or not hasattr(np.random, name):
            msg = f"xp.random has no {name}"
        raise AttributeError(msg)

"""Which of numpy's names distributed tensors have not, and the way round each."""

from __future__ import annotations

from typing import NoReturn

from disco_client.errors import ConfigError

__all__ = ["REFUSED", "refuse_function", "way_round"]

_WAITS = "its shape follows from the values: fetch them, numpy.{}(x.numpy())"
_SORTS = "sorting has no rule yet: fetch the values, numpy.{}(x.numpy())"
_WRITES = "it writes into its argument: x[...] = value and numpy.where(condition, value, x) do"
_ROOTS = "it is of a few coefficients: numpy.{}(x.numpy()), which session.distribute brings back"
_OWN = "it is about numpy itself: call numpy.{}"
_ERRORS = (
    "workers treat floating-point errors as numpy does by default: test with numpy.isfinite(x)"
)
_DTYPE = "its dtype has no arrays on the workers"
_CLASS = "it is a class of arrays of the host: session.numpy.asarray makes distributed tensors"
_STEPS = "it goes from element to element: numpy.{}(x.numpy())"
_FILES = "write x.numpy(), or each worker its part by session.save"
_VALUES = "it calls a function of the program on values: session.apply calls one of the workers"
_OLD = "it is an old name: numpy 2 has another one for it, or none"
_CHOOSES = "it looks at all values to choose a dtype: numpy.real(x) and numpy.imag(x) do not"
_SHARED = "no two tensors share memory that a program sees: x is y says whether two are one"

_BY_REASON: dict[str, str] = {
    _WAITS: "trim_zeros",
    _SORTS: "argpartition argsort lexsort median nanmedian nanpercentile nanquantile partition"
    " percentile quantile sort sort_complex intersect1d setdiff1d setxor1d",
    _WRITES: "copyto fill_diagonal place put put_along_axis putmask",
    _ROOTS: "poly polydiv polyfit polymul roots poly1d",
    _OWN: "get_include info show_config show_runtime test getbufsize setbufsize busdaycalendar"
    " ufunc format_parser add_newdoc add_docstring add_newdoc_ufunc deprecate deprecate_with_doc"
    " disp byte_bounds get_array_wrap issctype issubclass_ issubsctype lookfor"
    " maximum_sctype obj2sctype sctype2char safe_eval set_string_function tracemalloc_domain who"
    " asscalar source set_numeric_ops compare_chararrays chararray DataSource recfromcsv"
    " recfromtxt cast sctypes nbytes sctypeDict ScalarType RankWarning ComplexWarning"
    " VisibleDeprecationWarning ModuleDeprecationWarning TooHardError AxisError",
    _ERRORS: "geterr geterrcall seterr seterrcall geterrobj seterrobj",
    _DTYPE: "str_ bytes_ void object_ longdouble clongdouble float128 complex256 longcomplex"
    " longfloat float96 complex192 float_ complex_ cfloat singlecomplex string_ unicode_ int0"
    " uint0 void0 object0 str0 bytes0 bool8 datetime_as_string",
    _CLASS: "ndarray matrix memmap recarray record asmatrix mat bmat broadcast flatiter"
    " fromfile fromregex",
    _STEPS: "ndenumerate nditer nested_iters",
    _FILES: "save savetxt savez savez_compressed load",
    _VALUES: "apply_along_axis frompyfunc mask_indices piecewise vectorize",
    _OLD: "alltrue sometrue product cumproduct in1d trapz msort asfarray round_ find_common_type"
    " fastCopyAndTranspose",
    "numpy.vstack is the same": "row_stack",
    _CHOOSES: "real_if_close",
    _SHARED: "shares_memory may_share_memory",
}

REFUSED: dict[str, str] = {
    name: reason.format(name) for reason, names in _BY_REASON.items() for name in names.split()
}
"""By numpy's names, what to do instead."""


def way_round(name: str) -> str:
    """What to do instead of calling one of numpy's functions that is not served.

    Args:
        name: As numpy has it, such as ``"sort"`` or ``"linalg.svd"``.
    """
    return REFUSED.get(name) or (
        "of x.numpy() numpy can compute what it has, and session.apply does by a rule of your own"
    )


def refuse_function(name: str) -> NoReturn:
    """Refuses one of numpy's functions.

    Args:
        name: With its module.

    Raises:
        ConfigError: Always.
    """
    said = REFUSED.get(name.removeprefix("numpy."))
    why = f"; {said}" if said else ""
    raise ConfigError(
        f"there is no rule by which {name} computes on distributed tensors{why}: bring the"
        " operands to every worker with redistribute('R') and call a function of the workers"
        " on their .ref, fetch them with .numpy(), or register a rule with"
        " disco_client.distributed.register_rule"
    )

"""Instructions for `LANES` numbers at once, in the language of LLVM, which numba compiles with."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from llm.blocks import LANES

__all__ = ["FLOATS", "HALVES", "WORDS", "Vectors", "index", "lanes"]

ir: Any = importlib.import_module("llvmlite.ir")  # which says nothing of its types
_cgutils: Any = importlib.import_module("numba.core.cgutils")

FLOATS = ir.VectorType(ir.FloatType(), LANES)
WORDS = ir.VectorType(ir.IntType(32), LANES)
HALVES = ir.VectorType(ir.IntType(16), LANES)


def index(value: int) -> Any:
    """An integer that says where in an array."""
    return ir.Constant(ir.IntType(64), value)


def lanes(value: float, kind: Any) -> Any:
    """A constant, in all lanes."""
    return ir.Constant(kind, [value] * LANES)


@dataclass(frozen=True, slots=True)
class Vectors:
    """Writes instructions.

    Attributes:
        build: llvmlite's builder, at the place where they are written.
    """

    build: Any

    def load(self, data: Any, at: Any, kind: Any) -> Any:
        """The numbers of an array from its number ``at`` on."""
        place = self.build.bitcast(self.build.gep(data, [at]), kind.as_pointer())
        return self.build.load(place, align=2 if kind is HALVES else 4)

    def store(self, numbers: Any, data: Any, at: Any) -> None:
        """Writes float32 into an array from its number ``at`` on."""
        place = self.build.bitcast(self.build.gep(data, [at]), FLOATS.as_pointer())
        self.build.store(numbers, place, align=4)

    def prefetch(self, data: Any, at: Any) -> None:
        """Asks for an array's numbers around its number ``at``, which need not be one of them."""
        build, number = self.build, ir.IntType(32)
        place = build.bitcast(build.gep(data, [at]), ir.IntType(8).as_pointer())
        signature = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        fetch = build.module.declare_intrinsic("llvm.prefetch", [place.type], signature)
        kind = [ir.Constant(number, each) for each in (0, 3, 1)]  # to read, and to keep
        build.call(fetch, [place, *kind])

    def repeat(self, data: Any, at: Any) -> Any:
        """An array's float32 ``at``, in all lanes."""
        build, none = self.build, ir.Constant(FLOATS, ir.Undefined)
        one = build.insert_element(none, build.load(build.gep(data, [at])), index(0))
        return build.shuffle_vector(one, none, lanes(0, WORDS))

    def add_product(self, total: Any, a: Any, b: Any) -> Any:
        """Total + a * b, in one instruction where the processor has it."""
        kind = ir.FunctionType(FLOATS, [FLOATS] * 3)
        name = f"llvm.fmuladd.v{LANES}f32"
        add = _cgutils.get_or_insert_function(self.build.module, kind, name)
        return self.build.call(add, [a, b, total])

    def widen(self, halves: Any) -> Any:
        """The float32 of finite float16, given as their bits."""
        build = self.build
        bits = build.zext(halves, WORDS)
        magnitude = build.shl(build.and_(bits, lanes(0x7FFF, WORDS)), lanes(13, WORDS))
        sign = build.shl(build.and_(bits, lanes(0x8000, WORDS)), lanes(16, WORDS))
        # The exponents differ by 112, and subnormal numbers come out right as well.
        narrow = build.bitcast(build.or_(magnitude, sign), FLOATS)
        return build.fmul(narrow, lanes(2.0**112, FLOATS))

    def number(self, words: Any, bits: int, i: int) -> Any:
        """Number i of some bits in each word, without a sign, as float32."""
        build = self.build
        shifted = build.lshr(words, lanes(bits * i, WORDS))
        return build.sitofp(build.and_(shifted, lanes((1 << bits) - 1, WORDS)), FLOATS)

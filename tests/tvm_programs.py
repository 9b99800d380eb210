"""Compiles the modules that tests load, with the real TVM, into a folder.

A program of its own, because importing TVM's compiler changes a process: it
catches signals, and takes a second. Usage: python tvm_programs.py FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import tvm
from tvm import relax
from tvm import te as expressions  # codespell:ignore te
from tvm.script import relax as R  # noqa: N812  (TVM's own custom)

BATCH, WIDTH, INNER = 8, 16, 32
SEQUENCE, HEADS, HEAD = 5, 4, 4


def build(**functions: Callable[[relax.Expr], relax.Expr]) -> tvm.IRModule:
    """Functions of one matrix, by what each makes of it."""
    builder = relax.BlockBuilder()
    for name, make in functions.items():
        dtype = "bfloat16" if name.endswith("bfloat16") else "float32"
        x = relax.Var("x", R.Tensor((3, 4), dtype))
        with builder.function(name, [x]):
            builder.emit_func_output(builder.emit(make(x)))
    return builder.get()


def calling(name: str) -> Callable[[relax.Expr], relax.Expr]:
    """A call of a function that the workers must have."""
    return lambda x: R.call_pure_packed(name, x, ty_args=R.Tensor((3, 4), "float32"))


def basics() -> tvm.IRModule:
    """Results of several kinds."""
    return build(
        transpose=R.permute_dims,
        pair=lambda x: R.tuple(R.add(x, x), R.tuple(R.multiply(x, x), x)),
        twice_bfloat16=lambda x: R.add(x, x),
        same=lambda x: x,
    )


def scaling(names: str) -> tvm.IRModule:
    """Calls functions that are registered under names that begin so."""
    scale = f"{names}.scale_into"
    return build(
        scaled=lambda x: R.call_dps_packed(scale, (x,), R.Tensor((3, 4), "float32")),
        refused=calling(f"{names}.refuse"),
    )


def sharded(shards: int) -> tvm.IRModule:
    """One shard of a perceptron and of an attention block, and each collective."""
    builder = relax.BlockBuilder()
    add_mlp(builder, shards)
    add_attention(builder, shards)
    x = relax.Var("x", R.Tensor((2, 6), "float32"))
    for name, call in {
        "sum": lambda: R.ccl.allreduce(x, "sum", in_group=False),
        "sum_of_group": lambda: R.ccl.allreduce(x, "sum", in_group=True),
        "largest": lambda: R.ccl.allreduce(x, "max", in_group=False),
        "gathered": lambda: R.ccl.allgather(x, shards, in_group=False),
        "broadcast": lambda: R.ccl.broadcast_from_worker0(x),
    }.items():
        with builder.function(name, [x]):
            builder.emit_func_output(builder.emit(call()))
    wide = relax.Var("wide", R.Tensor((2, 6 * shards), "float32"))
    with builder.function("scattered", [wide]):
        builder.emit_func_output(builder.emit(R.ccl.scatter_from_worker0(wide, shards, axis=1)))
    return builder.get()


def summed(builder: relax.BlockBuilder, partial: relax.Expr, shards: int) -> relax.Expr:
    """The sum of all shards' results."""
    if shards == 1:
        return partial
    return builder.emit(R.ccl.allreduce(partial, "sum", in_group=True))


def add_mlp(builder: relax.BlockBuilder, shards: int) -> None:
    """Two layers, of which each shard has its part of the inner columns."""
    x = relax.Var("x", R.Tensor((BATCH, WIDTH), "float32"))
    first = relax.Var("first", R.Tensor((WIDTH, INNER // shards), "float32"))
    second = relax.Var("second", R.Tensor((INNER // shards, WIDTH), "float32"))
    with builder.function("mlp", [x, first, second]):
        inner = builder.emit(R.nn.gelu(R.matmul(x, first)))
        out = builder.emit(R.matmul(inner, second))
        builder.emit_func_output(summed(builder, out, shards))


def add_attention(builder: relax.BlockBuilder, shards: int) -> None:
    """Self-attention, of which each shard has its part of the heads."""
    heads, width = HEADS // shards, HEADS * HEAD // shards
    x = relax.Var("x", R.Tensor((2, SEQUENCE, WIDTH), "float32"))
    weights = [relax.Var(n, R.Tensor((WIDTH, width), "float32")) for n in ("q", "k", "v")]
    out = relax.Var("o", R.Tensor((width, WIDTH), "float32"))

    def split(weight: relax.Var) -> relax.Expr:
        projected = R.reshape(R.matmul(x, weight), (2, SEQUENCE, heads, HEAD))
        return builder.emit(R.permute_dims(projected, [0, 2, 1, 3]))

    with builder.function("attention", [x, *weights, out]):
        query, key, value = map(split, weights)
        scores = R.matmul(query, R.permute_dims(key, [0, 1, 3, 2]))
        scores = builder.emit(R.multiply(scores, R.const(HEAD**-0.5, "float32")))
        mixed = builder.emit(R.matmul(R.nn.softmax(scores, axis=-1), value))
        joined = R.reshape(R.permute_dims(mixed, [0, 2, 1, 3]), (2, SEQUENCE, width))
        result = builder.emit(R.matmul(joined, out))
        builder.emit_func_output(summed(builder, result, shards))


def plain() -> tvm.IRModule:
    """A library without the virtual machine: one function that fills its last argument."""
    a = expressions.placeholder((64,), name="a", dtype="float32")
    b = expressions.compute((64,), lambda i: a[i] + 1.0, name="b")
    func = expressions.create_prim_func([a, b]).with_attr("global_symbol", "add_one")
    return tvm.IRModule({"add_one": func})


def importing() -> tvm.IRModule:
    """A function of the virtual machine, and one in a module that its module imports."""
    x = expressions.placeholder((4, 2), name="x", dtype="float32")
    halves = expressions.compute((2, 2, 2), lambda i, j, k: x[i * 2 + j, k], name="halves")
    program = build(same=lambda x: x)
    func = expressions.create_prim_func([x, halves])
    program["shard_rows"] = func.with_attr("global_symbol", "shard_rows")
    return program


def shared_memory() -> tvm.IRModule:
    """An allreduce between additions, for the passes that have it done in shared memory."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((4, 8), "float32"))
    with builder.function("main", [x]):
        total = builder.emit(R.ccl.allreduce(R.add(x, x), "sum", in_group=False))
        builder.emit_func_output(builder.emit(R.add(total, R.const(1.0, "float32"))))
    return builder.get()


def shared_memory_pipeline(strategy: int) -> tvm.ir.transform.Pass:
    """What compilers for GPUs do with an allreduce, here for the CPU."""
    # The pass does nothing where the process has no such function.
    name = "runtime.disco.cuda_ipc.custom_allreduce"
    tvm.register_global_func(name, lambda *_: None, override=True)
    to = relax.transform
    return tvm.ir.transform.Sequential(
        [
            *(to.LegalizeOps(), to.RewriteDataflowReshape(), to.ToNonDataflow()),
            *(to.RemovePurityChecking(), to.CallTIRRewrite(), to.IPCAllReduceRewrite(strategy)),
            *(to.StaticPlanBlockMemory(), to.LowerGPUIPCAllocStorage(), to.LowerAllocTensor()),
            *(to.KillAfterLastUse(), to.LowerRuntimeBuiltin(), to.ComputePrimValue()),
            *(to.VMShapeLower(), to.AttachGlobalSymbol()),
        ]
    )


def main() -> None:
    """Compiles everything."""
    folder = Path(sys.argv[1])
    missing = build(main=calling("tests.nobody_has_this"))
    programs = {"basics": basics(), "missing": missing, "plain": plain(), "importing": importing()}
    # TVM's registry is one for the process: what a test serves must be no worker's.
    programs |= {"calling": scaling("tests"), "serving": scaling("tests.served")}
    programs |= {f"sharded_{shards}": sharded(shards) for shards in (1, 2, 4)}
    for name, program in programs.items():
        built = tvm.compile(program, target="llvm")
        built.export_library(str(folder / f"{name}.so"))
        if name in ("basics", "plain"):
            built.export_library(str(folder / f"{name}.tar"))
    for strategy in (1, 2):
        passes = shared_memory_pipeline(strategy)
        built = tvm.compile(shared_memory(), target="llvm", relax_pipeline=passes)
        built.export_library(str(folder / f"shared_memory_{strategy}.so"))


if __name__ == "__main__":
    main()

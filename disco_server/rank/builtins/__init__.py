"""The functions that every worker offers, by subject; importing this registers them all."""

from disco_server.rank.builtins import (
    array_stores,
    background_saves,
    cells,
    checkpoints,
    core,
    creation,
    files,
    objects,
    own_functions,
    places,
    scripts,
    streams,
    tensors,
    transfers,
    tvm_names,
    weights,
)

__all__ = [
    "array_stores",
    "background_saves",
    "cells",
    "checkpoints",
    "core",
    "creation",
    "files",
    "objects",
    "own_functions",
    "places",
    "scripts",
    "streams",
    "tensors",
    "transfers",
    "tvm_names",
    "weights",
]

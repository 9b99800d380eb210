"""Registers the functions that every worker offers, module by module."""

from __future__ import annotations

from importlib import import_module

__all__: list[str] = []

_MODULES = (
    "builtins",
    "weight_builtins",
    "shard_loader",
    "module_builtins",
    "dtensor_moves",
    "dtensor_ops",
    "checkpoint_builtins",
    "snapshot_builtins",
    "file_builtins",
    "published",
)

for _module in _MODULES:
    import_module(f"disco_server.runtime.{_module}")

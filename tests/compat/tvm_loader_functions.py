"""The functions that TVM's tests of its loader register, for workers that are no threads."""

from __future__ import annotations

from importlib import import_module

import tvm_stand_in

import disco_client

tvm_stand_in.put_in_place(disco_client)
tvm_stand_in.say_compiled("nccl")
import_module("test_loader")

"""Functions of a ShardLoader's chains, as the original's tests have them."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import disco_server

__all__ = ["get_shard_info", "halves"]


@disco_server.register_func("tests.disco.shard_dim_0")
def shard_dim_0(source, parts, target):
    """Rows to parts."""
    target[...] = source.reshape(parts, -1, *source.shape[1:])


@disco_server.register_func("tests.disco.shard_dim_1")
def shard_dim_1(source, parts, target):
    """Columns to parts."""
    target[...] = source.reshape(source.shape[0], parts, -1).swapaxes(0, 1)


@disco_server.register_func("tests.disco.shard_qkv_0")
def shard_qkv_0(source, parts, queries, keys, target):
    """Heads of query, key and value to parts: each has its share of all three."""
    heads = source.reshape(queries + 2 * keys, -1, source.shape[-1])
    at = 0
    for begin, count in ((0, queries), (queries, keys), (queries + keys, keys)):
        share = count // parts
        piece = heads[begin : begin + count].reshape(parts, share, *heads.shape[1:])
        target[:, at : at + share] = piece
        at += share


@disco_server.register_func("tests.disco.shard_qkv_1")
def shard_qkv_1(source, target):
    """Heads to rows."""
    target[...] = source.reshape(target.shape)


def halves(source, target):
    """A function that only this module has."""
    target[...] = source.reshape(target.shape) / 2


def get_shard_info():
    """What a compiled model says of its parameters."""
    return json.dumps({"param_1": [["halves", [[4, 2, 6], "float32"]]]})


@disco_server.register_func("tests.bytes_read")
def bytes_read():
    """How many bytes this process has read so far, by the kernel's count."""
    return int(Path("/proc/self/io").read_text().split()[1])


@disco_server.register_func("tests.lose_library")
def lose_library(name):
    """Makes a library one that cannot be imported in this process."""
    sys.modules[name] = None


@disco_server.register_func("tests.this_module")
def this_module():
    """The module itself, for a register."""
    import disco_test_shards

    return disco_test_shards


@disco_server.register_func("tests.limit_files")
def limit_files(worker_id, nbytes):
    """Lets one worker's process write files of at most so many bytes; negative for any."""
    if disco_server.current_worker().worker_id == worker_id:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        soft = resource.RLIM_INFINITY if nbytes < 0 else nbytes
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@disco_server.register_func("tests.limit_memory")
def limit_memory(nbytes):
    """Lets each worker's process have so many bytes more than it has now."""
    limit_own_memory(nbytes)


def limit_own_memory(nbytes):
    """Lets this process have so many bytes more of its own than it has now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (now,) = [int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:")]
    resource.setrlimit(resource.RLIMIT_DATA, (now + nbytes, resource.RLIM_INFINITY))

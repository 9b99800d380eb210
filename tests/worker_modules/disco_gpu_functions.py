"""Functions that tests run on workers with GPUs; the same on numpy's arrays and cupy's."""

from __future__ import annotations

import disco_server


@disco_server.register_func("tests.gpu.library")
def library(array):
    """Whose an array is."""
    return type(array).__module__


@disco_server.register_func("tests.gpu.layer")
def layer(x, weight, bias):
    """A dense layer with its activation."""
    xp = disco_server.current_worker().xp
    y = xp.matmul(x, weight)
    y += bias
    return xp.tanh(y)


@disco_server.register_func("tests.gpu.softmax")
def softmax(scores):
    """The softmax of each row."""
    xp = disco_server.current_worker().xp
    weights = xp.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@disco_server.register_func("tests.gpu.mlp")
def mlp(x, up, down):
    """A worker's share of two layers; the allreduce is between what is computed."""
    worker = disco_server.current_worker()
    xp = worker.xp
    total = worker.allreduce(xp.matmul(xp.maximum(xp.matmul(x, up), 0), down))
    return total - total.mean(axis=1, keepdims=True)


@disco_server.register_func("tests.gpu.occupy")
def occupy(worker):
    """Gives the GPU of one worker seconds of work, and does not wait for it."""
    here = disco_server.current_worker()
    if here.worker_id != worker:
        return
    # The stand-in computes on the host, later.
    extent, count = (64, 2) if hasattr(here.xp, "STANDIN") else (8192, 400)
    matrix = here.xp.ones((extent, extent), "float32")
    for _ in range(count):
        matrix = here.xp.matmul(matrix, matrix)

"""Trains a small network on the workers of a session, with nothing but numpy.

Each worker has the whole network and a part of each batch. What a step computes of the
parts, gradients and loss, the workers average with allreduces, so all of them go on with
the same weights, and the losses are those of a single process with the whole batches::

    disco local --nodes 2 --slots 2 -- python examples/train_numpy.py

Exit codes: 0, or 1 where a cluster failed or the losses differ by more than rounding does.
"""

from __future__ import annotations

import sys

from training.command import main
from training.numpy_network import NumpyNetwork

if __name__ == "__main__":
    sys.exit(main("train_numpy", "numpy", NumpyNetwork))

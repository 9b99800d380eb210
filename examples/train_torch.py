"""Trains a small network of torch on the workers of a session: its autograd, its optimiser.

As `train_numpy.py`, with a model of torch: after each backward pass the workers average
``parameter.grad``, which are tensors of torch, in place::

    disco local --nodes 2 --slots 2 -- python examples/train_torch.py

Exit codes: 0, or 1 where a cluster failed or the losses differ by more than rounding does.
"""

from __future__ import annotations

import sys

from training.command import main

if __name__ == "__main__":
    try:
        from training.torch_network import TorchNetwork
    except ImportError as error:
        sys.exit(f"train_torch: {error}; pip install torch")
    sys.exit(main("train_torch", "torch", TorchNetwork))

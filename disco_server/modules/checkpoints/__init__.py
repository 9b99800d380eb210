"""Checkpoints: the parts of tensors in a file of each worker, and an index of them all."""

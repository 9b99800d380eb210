"""Data-parallel training: a small network whose gradients are averaged over the workers."""

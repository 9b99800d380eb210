"""An integral over a cube, by the mean of a function at random points, with its standard error.

    python examples/arrays/monte_carlo.py

It is a program for numpy, but for its first two lines: in numpy's they are ``import numpy`` and
``xp = numpy``. Each worker draws its part of the points, and of each sum one number moves. The
points are not numpy's for the same seed, but are the same on any number of workers.
"""

from disco_client import ProcessSession

xp = ProcessSession(4).numpy

count, seed = 400_000, 7

# Of exp(-|x|^2) over [0, 1]^3.
points = xp.random.default_rng(seed).random((count, 3))
values = xp.exp(-xp.sum(points**2, axis=1))
print(f"integral {xp.mean(values):.6f}")
print(f"standard error {xp.std(values) / count**0.5:.6f}")

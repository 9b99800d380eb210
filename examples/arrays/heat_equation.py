"""The heat of a plate with one hot edge, by Jacobi's iteration.

    python examples/arrays/heat_equation.py

It is a program for numpy, but for its first two lines: in numpy's they are ``import numpy`` and
``xp = numpy``. The plate is split by rows; in each step neighbours exchange a few rows.
"""

from disco_client import ProcessSession

xp = ProcessSession(4).numpy

size, steps, hot = 64, 100, 100.0

plate = xp.zeros((size, size))
plate[0] = hot
for _ in range(steps):  # each temperature becomes the mean of its neighbours
    plate[1:-1, 1:-1] = (
        plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:]
    ) / 4

print(f"mean {xp.mean(plate):.6f}")
for row in (1, 4, 8, 16):
    print(f"row {row:2}, middle {plate[row, size // 2]:.6f}")

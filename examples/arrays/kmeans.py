"""Lloyd's algorithm: points in a plane, and the centres of the clusters that they are in.

    python examples/arrays/kmeans.py

It is a program for numpy, but for its first two lines: in numpy's they are ``import numpy`` and
``xp = numpy``. The points are split; of each step only sums move, of a few numbers for each centre.
"""

from disco_client import ProcessSession

xp = ProcessSession(4).numpy

count, clusters, steps = 100_000, 3, 10

# Around each of three places the points fill a square evenly; [count, 2].
number = xp.arange(count)
square = xp.stack([number * 0.7548776662466927 % 1, number * 0.5698402909980532 % 1], axis=1)
place = number % clusters
points = square + xp.stack([place * 0.8, (place == 1) * 1.5], axis=1)

centres = points[:clusters]
for _ in range(steps):
    apart = xp.sum((points[:, None, :] - centres) ** 2, axis=2)
    nearest = xp.argmin(apart, axis=1)
    members = (nearest[:, None] == xp.arange(clusters)).astype("float64")
    centres = members.T @ points / xp.sum(members, axis=0)[:, None]

for x, y in centres:
    print(f"centre {x:.6f}, {y:.6f}")

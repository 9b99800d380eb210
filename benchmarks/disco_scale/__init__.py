"""How the cost of a cluster grows with its nodes and sessions: parts of ``benchmarks/scale.py``."""

"""The measurements of ``benchmarks/run.py``: each figure of Disco beside its yardstick."""

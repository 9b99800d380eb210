"""Weights on disk: their formats, and reading just a worker's own part of a tensor."""

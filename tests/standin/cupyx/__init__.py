"""A stand-in for what comes with the library `cupy`; see the README above this package."""

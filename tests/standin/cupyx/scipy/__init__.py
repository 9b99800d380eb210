"""Functions of scipy, for arrays of the device."""

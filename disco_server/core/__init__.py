"""Decisions without I/O, clocks or threads: they take events and return what to do."""

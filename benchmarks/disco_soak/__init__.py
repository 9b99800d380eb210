"""Random programs on all kinds of sessions, under random faults, checked against numpy."""

"""Transport of envelopes between a daemon and its ranks."""

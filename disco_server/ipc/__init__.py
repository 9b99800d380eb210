"""What carries envelopes between a daemon and its ranks."""

"""The worker daemon and its rank processes."""

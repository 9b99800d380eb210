"""Observability of the daemons: logs, metrics, traces."""

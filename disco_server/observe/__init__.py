"""What the daemons show of themselves: logs, metrics, traces."""

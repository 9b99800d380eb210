"""Sessions that start their own workers: threads, processes, and nodes that dial in."""

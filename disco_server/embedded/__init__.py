"""Sessions that bring their own workers: threads, processes, nodes that dial in."""

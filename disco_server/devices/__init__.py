"""Where a rank's arrays lie: in the host's memory, or on a GPU by cupy."""

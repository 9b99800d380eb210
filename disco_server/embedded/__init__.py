"""Sessions whose controller and workers belong to the client's own process."""

"""What carries a session's envelopes: the protocol, and gRPC."""

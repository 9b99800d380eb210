"""What carries a session's envelopes: the protocol, gRPC, and shared memory for arrays."""

"""Host arrays between a session and its workers: by shared memory, or by gRPC."""

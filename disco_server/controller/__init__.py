"""The controller daemon: relay, sessions, rendezvous, and its gRPC edge."""

"""What the examples share: how they get a session, and what they print when one fails."""

"""What the examples share: how they come by a session, and what they say when one fails."""

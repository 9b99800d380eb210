"""How a session survives the loss of its workers: a journal of its commands, and their replay."""

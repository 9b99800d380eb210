"""The shared language of client, controller, daemons and ranks; no I/O here."""

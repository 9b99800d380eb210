"""How the ranks of a session move and combine arrays among themselves."""

"""What comes from files: modules with functions, and weights."""

"""What sessions load from files: modules with functions, and weights."""

"""One rank: register file, functions, builtins, executor."""

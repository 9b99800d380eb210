"""A small decoder-only transformer that is written with distributed tensors."""

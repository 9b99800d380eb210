"""Code generated from protos/; never edited by hand."""

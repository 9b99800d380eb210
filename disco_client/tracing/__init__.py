"""Timelines of ranks: the records that ranks keep, and traces made of them."""

"""What every rank did when: the records that ranks keep, and traces made of them."""

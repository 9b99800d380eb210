"""Loading sharded weights: what a program wants, checked against what the files hold."""

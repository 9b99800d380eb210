"""The commands a person starts."""

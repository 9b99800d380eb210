"""A language model of the Llama architecture, split over the workers of a session."""

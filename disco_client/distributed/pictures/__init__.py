"""Pictures of how tensors lie on their workers."""

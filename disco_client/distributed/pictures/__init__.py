"""Pictures of how tensors are placed on their workers."""

"""Tasks and GPUs as people and tools see them."""

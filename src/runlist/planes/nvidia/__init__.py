"""The driver plane: NVIDIA's resource manager (RM) spoken to over descriptors borrowed from other processes."""

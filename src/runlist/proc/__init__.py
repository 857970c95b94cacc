"""Processes as the kernel shows them, and calls on them. Nothing here knows of GPUs."""

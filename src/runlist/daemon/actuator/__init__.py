"""What suspends the background of a GPU at once, while the daemon does something else."""

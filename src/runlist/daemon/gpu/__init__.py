"""One scheduler a GPU, and who used how much of it."""

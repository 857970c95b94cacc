"""The memory that trees of processes hold on GPUs, and their limits."""

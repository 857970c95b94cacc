"""What benchmarks are made of: running them, figures, programs side by side, and readings of who held the GPU."""

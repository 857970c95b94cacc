"""Programs that benchmarks start: in C, compiled when they are measured, and one in Python."""

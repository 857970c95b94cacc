"""What the kernel tells of processes, and what it lets one do to another: leaves that know nothing of GPUs."""

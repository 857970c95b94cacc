"""What the kernel plane tells, from its ring to whoever looks after processes."""

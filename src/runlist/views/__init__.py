"""What people and tools are shown."""

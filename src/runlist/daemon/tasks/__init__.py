"""What the daemon holds of each process."""

"""What the daemon knows of each process: its tasks, and the files that reach it."""

"""What trees of processes may hold of a GPU's memory, and what they hold."""

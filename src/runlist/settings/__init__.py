"""The settings of a process, in one table."""

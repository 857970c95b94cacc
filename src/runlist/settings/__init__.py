"""The one table of a process' settings."""

"""The process plane: what is done from inside a process, by librunlist.so, and how it gets there."""

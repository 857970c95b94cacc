"""The process plane: librunlist.so, which works inside processes, and the ways to it from outside."""

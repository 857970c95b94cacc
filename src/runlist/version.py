"""The version, where all may take it from."""

__version__ = "0.10.0"

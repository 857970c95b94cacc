"""Runlist: share an NVIDIA GPU between unmodified processes, on the stock driver."""

__version__ = "0.1.0"

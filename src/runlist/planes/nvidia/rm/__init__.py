"""The protocol of NVIDIA's resource manager (RM).

Read in this order: `commands` (the protocol as data), `status` (its errors), `transport` (how a call reaches a driver
or the emulated GPU), `client` (calls on one open file).
"""

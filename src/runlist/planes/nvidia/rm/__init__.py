"""The driver plane: NVIDIA's resource manager (RM) spoken to over descriptors borrowed from other processes.

Read in this order: `layout` and `commands` (the protocol as data), `status` (its errors), `transport` (how a call
reaches a driver or the emulated GPU), `client` (calls on one open file), `borrow` (another process' open file),
`discover` (what that process has on the GPU), `context` (the controls on what was found).
"""

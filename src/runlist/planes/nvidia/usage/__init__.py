"""True usage: who held a GPU and for how long, from the best source that this driver has.

`switch_log` is exact, from the GPU's own log of context switches; `nvml` is coarse.
"""

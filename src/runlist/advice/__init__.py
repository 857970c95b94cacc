"""`runlist doctor PID`: what a process does on its GPUs, how the background gives way to it, and what would fit better.

`look` asks the daemon twice, `observation` is what was seen in between, and `table` says what to make of it.
"""

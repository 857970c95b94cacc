"""Benchmarks: every figure that Runlist claims, measured in one run by `python -m bench`.

Each module of this package measures one thing and returns `Figure`s; `__main__` runs them and writes docs/results/.
"""

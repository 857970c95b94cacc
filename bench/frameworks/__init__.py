"""Programs of the common frameworks, each a child process: `python -m bench.frameworks.NAME` starts one.

Those that the benchmarks of memory limits steer name what they can do as `PARTS`; see `part.py` for what a part is.
Those of the benchmark `pairs` speak the protocol of `runlist.workloads.protocol`; see `served.py`.
"""

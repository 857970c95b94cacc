"""The programs that serve requests in the workloads, each a process: `python -m bench.papers.gpreempt.programs.NAME`.

Each knows nothing of Runlist, nor of the others. What they share, and how one is written, is in
`bench/papers/common/programs/serving.py`.
"""

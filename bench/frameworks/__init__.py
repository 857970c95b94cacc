"""Programs of the common frameworks, each a child process that the benchmark `frameworks` steers.

Each names what it can do as `PARTS`; see `part.py` for what a part is. `python -m bench.frameworks.NAME` starts one.
"""

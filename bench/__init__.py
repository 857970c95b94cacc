"""Benchmarks: every figure that Runlist claims, measured by `python -m bench`, which keeps them in docs/results/.

`benchmarks/` has one module a benchmark; `harness/` is what they are made of; `programs/` and `frameworks/` are what
they start.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The repository."""

"""The driver's own time slicing: a process for each program, and nothing else."""

from __future__ import annotations

from bench.papers.gpreempt.systems.system import System


class Slicing(System):
    """What one has without doing anything."""

    name = "slicing"
    title = "time slicing"


SYSTEM = Slicing()

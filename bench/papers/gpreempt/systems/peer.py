"""A system that the user built beside, by a program of theirs: `PATH lc|be COMMAND…` runs the command
under it.
"""

from __future__ import annotations

import os
from pathlib import Path

from bench.papers.common.server import Start
from bench.papers.gpreempt.config import Workload
from bench.papers.gpreempt.systems.system import Place, System


class Peer(System):
    """None of its code is here. It sets what its system needs (libraries, variables), and becomes the command."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = self.title = name
        self._path = path.absolute()

    def refuses(self, workload: Workload, place: Place) -> str:
        del workload, place
        return "" if os.access(self._path, os.X_OK) else f"{self._path} is no program that can be run"

    def group(self, workload: Workload) -> str:
        del workload
        return f"peer {self.name}"

    def starts(self, workload: Workload, place: Place) -> list[Start]:
        return [place.process(task, before=(str(self._path), task.kind.lower())) for task in workload.tasks]

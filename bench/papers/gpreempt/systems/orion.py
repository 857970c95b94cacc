"""Orion's rule, by Runlist's scheduler of operations: all programs as threads of one process, as it is published.

Nothing that runs is interrupted: a best-effort operation begins beside the latency-critical program only where the rule
admits it. There is one program of high priority. Compare with NP, which has Python's own lock in it, too.
"""

from __future__ import annotations

from bench.papers.common.server import Start
from bench.papers.gpreempt.config import Workload
from bench.papers.gpreempt.systems.system import Place, System

_RULE = "orion"
_MOST_CLIENTS = 16


class Orion(System):
    """Preloads the library, and needs nothing else: no daemon, no MPS."""

    name = "orion"
    title = "Orion's rule"

    def refuses(self, workload: Workload, place: Place) -> str:
        del place
        if len(workload.urgent) > 1:
            return f"Orion's rule has one program of high priority, and this has {len(workload.urgent)}"
        return "" if len(workload.tasks) <= _MOST_CLIENTS else f"it has at most {_MOST_CLIENTS} clients"

    def group(self, workload: Workload) -> str:
        del workload
        return self.name

    def starts(self, workload: Workload, place: Place) -> list[Start]:
        return [place.hosted([*workload.urgent, *workload.best_effort], {}, _RULE)]


SYSTEM = Orion()

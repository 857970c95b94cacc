"""Putting the daemon together: the one module that knows all of its rooms."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runlist.daemon.actuator.link import ActuatorLink
from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.memory.census import MemoryCensus
from runlist.daemon.memory.driver_limits import DriverLimits
from runlist.daemon.placement.placement import Placement
from runlist.daemon.requests.manager import Manager
from runlist.daemon.tasks.lending import Lending
from runlist.daemon.tree.adoption import Adoption
from runlist.daemon.tree.checkpoints import Checkpoints
from runlist.daemon.tree.checks import Checks
from runlist.daemon.tree.descriptors import Descriptors
from runlist.daemon.tree.memory_guard import MemoryGuard
from runlist.daemon.tree.processes import Processes
from runlist.daemon.tree.search import Search
from runlist.daemon.undo.link import KeeperLink
from runlist.planes.interface import Plane
from runlist.policies import PolicySpec


@dataclass(frozen=True)
class Daemon:
    """All that lives as long as the daemon. `opened` is set when it is worth looking for new processes and contexts."""

    plane: Plane
    actuator: ActuatorLink
    gpus: Gpus
    census: MemoryCensus
    placement: Placement
    keeper: KeeperLink
    processes: Processes
    adoption: Adoption
    checks: Checks
    checkpoints: Checkpoints
    search: Search
    guard: MemoryGuard
    descriptors: Descriptors
    manager: Manager
    opened: asyncio.Event

    def close(self) -> None:
        """Put everything back and end the keeper."""
        self.manager.close()
        self.processes.close()
        self.adoption.close()
        self.gpus.close()
        self.actuator.close()
        self.keeper.close()
        self.census.close()


def compose(plane: Plane, spec: PolicySpec, rules_file: Path | None, on_hopeless: Callable[[], None]) -> Daemon:
    """A daemon over a plane, in the running event loop. `on_hopeless` is called when nothing can be managed safely any
    more. Raises RunlistError for a bad policy or bad rules, before anything starts.
    """
    actuator = ActuatorLink(plane.name)
    gpus = Gpus(plane, spec, lambda pid: processes.release(pid), actuator)  # noqa: PLW0108 (these are made below)
    census = MemoryCensus(plane.census)
    placement = Placement(rules_file, gpus, census)
    keeper = KeeperLink(plane.name, on_hopeless)
    processes = Processes(gpus, keeper, DriverLimits(census))
    lending = Lending(plane)
    adoption = Adoption(plane.finder(), lending, processes, gpus, keeper, placement)
    checks = Checks(processes, gpus, keeper, placement, lending)
    opened = asyncio.Event()
    search = Search(processes, adoption, checks, placement, opened.set)
    guard = MemoryGuard(processes, gpus, census, placement, lambda: checks.check(slices=False), search.look_again)
    descriptors = Descriptors(plane)
    manager = Manager(
        gpus=gpus, census=census, placement=placement, keeper=keeper, processes=processes, adoption=adoption,
        search=search, guard=guard, descriptors=descriptors, opened=opened,
    )  # fmt: skip
    return Daemon(
        plane, actuator, gpus, census, placement, keeper, processes, adoption, checks, Checkpoints(processes), search,
        guard, descriptors, manager, opened,
    )  # fmt: skip

"""Putting the daemon together: the one module that knows all of its rooms."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from runlist.daemon.actuator.link import ActuatorLink
from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.kernel.link import KernelLink
from runlist.daemon.kernel.policy import PolicyMap
from runlist.daemon.memory.census import MemoryCensus
from runlist.daemon.memory.driver_limits import DriverLimits
from runlist.daemon.placement.drop_ins import DropIns
from runlist.daemon.placement.placement import Placement
from runlist.daemon.requests.manager import Manager
from runlist.daemon.tasks.lending import Lending
from runlist.daemon.tree.adoption import Adoption
from runlist.daemon.tree.checkpoints import Checkpoints
from runlist.daemon.tree.checks import Checks
from runlist.daemon.tree.descriptors import Descriptors
from runlist.daemon.tree.memory_guard import MemoryGuard
from runlist.daemon.tree.processes import Processes
from runlist.daemon.tree.revision import Revision
from runlist.daemon.tree.rousing import Rousing
from runlist.daemon.tree.search import Search
from runlist.daemon.tree.sightings import Sightings
from runlist.daemon.undo.link import KeeperLink
from runlist.daemon.undo.record import Record
from runlist.planes.interface import Plane
from runlist.policies import PolicySpec


class Daemon(msgspec.Struct, frozen=True):
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
    rousing: Rousing
    checkpoints: Checkpoints
    search: Search
    guard: MemoryGuard
    descriptors: Descriptors
    manager: Manager
    opened: asyncio.Event
    drop_ins: DropIns
    revision: Revision
    kernel: KernelLink
    sightings: Sightings

    def close(self) -> None:
        """Put everything back and end the keeper."""
        self.sightings.close()
        self.manager.close()
        self.processes.close()
        self.kernel.close()  # its loader may be stopped, for which nobody waits who is suspended
        self.adoption.close()
        self.gpus.close()
        self.actuator.close()
        self.keeper.close()
        self.census.close()
        self.drop_ins.close()


def compose(
    plane: Plane,
    spec: PolicySpec,
    rules_file: Callable[[], Path | None],
    drop_ins: Path,
    record: Record,
    on_hopeless: Callable[[], None],
) -> Daemon:
    """A daemon over a plane, in the running event loop. `rules_file` names the file of rules, if there is one now, and
    `drop_ins` the folder of others; `record` is for the next daemon. `on_hopeless` is called when nothing can be
    managed safely any more. Raises RunlistError for a bad policy or bad rules, before anything starts.
    """
    actuator = ActuatorLink(plane.name)
    gpus = Gpus(plane, spec, lambda *lost: processes.lose(*lost), actuator)  # noqa: PLW0108 (these are made below)
    census = MemoryCensus(plane.census)
    placement = Placement(rules_file(), gpus, census)
    keeper = KeeperLink(plane.name, record, on_hopeless)
    processes = Processes(gpus, keeper, DriverLimits(census))
    lending = Lending(plane)
    finder = plane.finder()
    adoption = Adoption(finder, lending, processes, gpus, keeper, placement, census)
    checks = Checks(processes, gpus, keeper, placement, lending)
    opened = asyncio.Event()
    search = Search(processes, adoption, checks, placement, opened.set)
    guard = MemoryGuard(
        processes,
        gpus,
        census,
        placement,
        lambda: checks.check(files=True, slices=False),
        search.look_again,
        search.look_soon,
    )
    descriptors = Descriptors(plane)
    revision = Revision(processes, gpus, keeper, placement, search, rules_file)
    policy = PolicyMap(placement.rules)
    revision.after_change = policy.update
    kernel = KernelLink(
        plane, lambda events: sightings.hear(events), lambda: sightings.gap(),  # noqa: PLW0108 (it is made below)
        policy, lambda: [pid for pid in (keeper.pid, gpus.actuator_pid) if pid],
        lambda events: sightings.begin(events),  # noqa: PLW0108 (likewise)
    )  # fmt: skip
    sightings = Sightings(finder, processes, adoption, checks, search, gpus, placement, kernel, policy, census)
    manager = Manager(
        gpus=gpus, census=census, placement=placement, keeper=keeper, processes=processes, adoption=adoption,
        search=search, guard=guard, descriptors=descriptors, opened=opened, revision=revision,
        kernel=kernel, changed_users=checks.changed_users,
    )  # fmt: skip
    return Daemon(
        plane, actuator, gpus, census, placement, keeper, processes, adoption, checks,
        Rousing(processes, gpus, lambda: kernel.works), Checkpoints(processes), search, guard, descriptors, manager,
        opened, placement.take_drop_ins(drop_ins, revision.rules_changed), revision, kernel, sightings,
    )  # fmt: skip

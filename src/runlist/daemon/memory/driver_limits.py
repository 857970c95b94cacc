"""Memory limits by the driver itself (R615 and newer): for a cgroup, set through NVML by root.

A tree gets a cgroup of its own below its present one, so that other limits stay in force.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import structlog

from runlist.daemon.memory.census import MemoryCensus
from runlist.errors import NotSupportedError
from runlist.planes.interface import CensusError
from runlist.proc.cgroup import MOUNT, cgroup_of
from runlist.proc.process import descendants

_log = structlog.get_logger()


class DriverLimits:
    """Whether this driver and this daemon can limit memory by cgroup, and how a tree gets its cgroup."""

    def __init__(self, census: MemoryCensus, mount: Path = MOUNT) -> None:
        self._census = census
        self._mount = mount
        self._works: bool | None = None

    @property
    def work(self) -> bool:
        """Whether they can; tried once."""
        if self._works is None:
            self._works = (
                os.geteuid() == 0
                and (self._mount / "cgroup.controllers").exists()  # the unified hierarchy
                and self._census.limits_supported(self._cgroup_of(os.getpid()))
            )
        return self._works

    def enter(self, pid: int) -> CgroupLimit:
        """Put a process and its descendants into a cgroup of their own. Raises NotSupportedError."""
        group = CgroupLimit(self._cgroup_of(pid) / f"runlist-{pid}", self._census)
        group.take(pid)
        return group

    def _cgroup_of(self, pid: int) -> Path:
        return self._mount / cgroup_of(pid)[0].lstrip("/")


class CgroupLimit:
    """The cgroup of a tree."""

    def __init__(self, path: Path, census: MemoryCensus) -> None:
        self._path = path
        self._census = census
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            raise NotSupportedError(f"{path} cannot be made: {error.strerror}") from None

    def take(self, pid: int) -> None:
        """Move a process and its descendants in, again and again until none is new: they may fork meanwhile."""
        known: set[int] = set()
        while fresh := set(descendants([pid])[pid]) - known:
            for member in fresh:
                with contextlib.suppress(OSError):  # it ended
                    _move(member, self._path)
            known |= fresh

    def set(self, limit: int | None) -> None:
        """Limit each GPU's memory, in bytes; None for no limit. Raises NotSupportedError when the driver refuses."""
        try:
            for gpu in self._census.gpus():
                self._census.limit(gpu, self._path, limit)
        except CensusError as error:
            raise NotSupportedError(f"the driver refuses a memory limit: {error}") from None

    def close(self) -> None:
        """Move its processes back, and remove the cgroup with its limits."""
        try:
            for word in (self._path / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    _move(int(word), self._path.parent)
            self._path.rmdir()
        except OSError as error:
            _log.warning("a cgroup is left", path=str(self._path), reason=error.strerror)


def _move(pid: int, group: Path) -> None:
    (group / "cgroup.procs").write_text(str(pid))

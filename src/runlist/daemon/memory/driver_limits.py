"""Memory limits by the driver itself (R615 and newer): for a cgroup, set through NVML by root.

A tree gets a cgroup of its own below its present one, so that other limits stay in force. Where that one was given to
its user, its processes may leave again.
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

_ROUNDS = 16
"""So often one looks for processes that were forked while others were moved. Those forked by who is in are in, too."""


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
            if path.stat().st_uid != os.geteuid():
                raise NotSupportedError(f"{path} is somebody else's")
        except OSError as error:
            raise NotSupportedError(f"{path} cannot be made: {error.strerror}") from None

    def take(self, pid: int) -> None:
        """Move a process and its descendants in, as long as some are not: they may fork meanwhile."""
        for _ in range(_ROUNDS):
            if not (outside := frozenset(descendants([pid])[pid]) - self.members()):
                return
            for member in outside:
                with contextlib.suppress(OSError):  # it ended
                    _move(member, self._path)

    def members(self) -> frozenset[int]:
        """The processes that are in it now."""
        try:
            return frozenset(map(int, (self._path / "cgroup.procs").read_text().split()))
        except (OSError, ValueError):
            return frozenset()

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
            for _ in range(_ROUNDS):
                for member in (members := self.members()):
                    with contextlib.suppress(OSError):
                        _move(member, self._path.parent)
                if not members:
                    break
            self._path.rmdir()
        except OSError as error:
            _log.warning("a cgroup is left", path=str(self._path), reason=error.strerror)


def _move(pid: int, group: Path) -> None:
    (group / "cgroup.procs").write_text(str(pid))

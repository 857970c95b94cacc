"""Memory limits that the driver keeps, by cgroup: who is in one, who leaves it, and whose it is."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.memory import driver_limits
from runlist.daemon.memory.driver_limits import CgroupLimit, DriverLimits
from runlist.daemon.memory.quota import Quota
from runlist.errors import NotSupportedError
from runlist.planes.interface import CensusError
from runlist.planes.process.region import Region
from tests.fixtures.daemon import NOBODY, needs_root
from tests.fixtures.memory_world import GPU, PID, GiB, World


class Group:
    def __init__(self) -> None:
        self.limits: list[int | None] = []
        self.closed = False
        self.inside = frozenset({PID})

    def members(self) -> frozenset[int]:
        return self.inside

    def set(self, limit: int | None) -> None:
        self.limits.append(limit)

    def close(self) -> None:
        self.closed = True


def test_where_the_driver_has_limits_it_keeps_them_and_the_region_says_so(region: Region) -> None:
    group = Group()
    tree = World(region)
    tree.quota = tree.root.quota = Quota(region, lambda: group)
    tree.quota.set_limit(GiB)
    assert (group.limits, region.read().memory, tree.quota.by_driver) == ([GiB], GiB, True)
    tree.look()
    assert not tree.task.task.suspended
    group.inside = frozenset()  # it went back to where it was
    for _ in range(2):
        tree.look()
    assert tree.task.task.suspended
    assert tree.task.remark.startswith("suspended: its tree holds 3.0 GiB with a limit of 1.0 GiB")
    tree.quota.close()
    assert group.closed


def test_then_also_what_was_not_started_by_us_can_be_limited() -> None:
    group = Group()
    quota = Quota(group=lambda: group)
    quota.set_limit(GiB)
    assert (quota.limit, group.limits) == (GiB, [GiB])


@pytest.fixture
def childless() -> Iterator[int]:
    """A process of the test's own; nothing else starts or ends below it."""
    process = subprocess.Popen(["sleep", "60"])
    yield process.pid
    process.kill()
    process.wait()


def test_a_tree_gets_a_cgroup_below_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, childless: int) -> None:
    calls: list[tuple[str, Path, int | None]] = []
    monkeypatch.setattr("runlist.daemon.memory.driver_limits.cgroup_of", lambda pid: ("/a.slice", ""))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "a.slice").mkdir()
    memory: Any = SimpleNamespace(
        limits_supported=lambda cgroup: True, gpus=lambda: [GPU], limit=lambda *call: calls.append(call)
    )
    limits = DriverLimits(memory, tmp_path)
    assert not limits.work  # not the unified hierarchy
    (tmp_path / "cgroup.controllers").touch()
    limits = DriverLimits(memory, tmp_path)
    assert limits.work
    group = limits.enter(childless)
    path = tmp_path / "a.slice" / f"runlist-{childless}"
    assert (path / "cgroup.procs").read_text() == str(childless)
    group.set(GiB)
    group.set(None)
    assert calls == [(GPU, path, GiB), (GPU, path, None)]

    def refuse(*_: object) -> None:
        raise CensusError("not on this GPU")

    memory.limit, limit = refuse, memory.limit
    with pytest.raises(NotSupportedError, match="the driver refuses a memory limit: not on this GPU"):
        group.set(GiB)
    memory.limit = limit
    assert group.members() == {childless}
    group.close()
    assert (tmp_path / "a.slice" / "cgroup.procs").read_text() == str(childless)  # moved back
    with pytest.raises(NotSupportedError, match="cannot be made"):
        DriverLimits(memory, tmp_path / "none").enter(childless)


@needs_root
def test_a_cgroup_that_is_there_already_is_not_used_if_it_is_a_strangers(tmp_path: Path) -> None:
    path = tmp_path / "runlist-7"
    path.mkdir()
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(NotSupportedError, match="is somebody else's"):
        CgroupLimit(path, SimpleNamespace())  # type: ignore[arg-type]
    os.chown(path, 0, 0)
    CgroupLimit(path, SimpleNamespace())  # type: ignore[arg-type]


def test_a_tree_that_always_forks_is_taken_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is forked by who is in is in, too: nobody waits for the end of it."""
    (tmp_path / "runlist-7").mkdir()
    group = CgroupLimit(tmp_path / "runlist-7", SimpleNamespace())  # type: ignore[arg-type]
    walks = 0
    moved: list[int] = []

    def walk(pids: list[int]) -> dict[int, list[int]]:
        nonlocal walks
        walks += 1
        assert walks < 100, "it goes on for ever"
        return {7: [7, *range(1000, 1000 + walks)]}

    monkeypatch.setattr(driver_limits, "descendants", walk)
    monkeypatch.setattr(driver_limits, "_move", lambda pid, path: moved.append(pid))
    group.take(7)
    assert {7, 1000} <= set(moved)
    walks = 0
    moved.clear()
    monkeypatch.setattr(group, "members", lambda: {7, *range(1000, 2000)})
    group.take(7)
    assert (walks, moved) == (1, [])


def test_who_leaves_the_drivers_group_does_not_leave_the_limit() -> None:
    group = Group()
    quota = Quota(group=lambda: group)
    quota.set_limit(GiB)
    group.inside = frozenset({5, 6})
    quota.see_who_left({5})
    assert (quota.by_driver, quota.firm) == (True, None)
    quota.see_who_left({5, 7})
    assert (quota.by_driver, quota.firm) == (False, GiB)
    quota.see_who_left({5, 6})
    assert (quota.by_driver, quota.firm) == (True, None)

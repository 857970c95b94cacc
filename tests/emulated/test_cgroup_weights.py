"""Tasks whose weight follows the CPU weight of their cgroup, by the kernel's own files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runlist.proc.cgroup import MOUNT, cgroup_of
from tests.fixtures.daemon import Commands, Daemon, Worker, needs_root, task_of, wait_for

pytestmark = needs_root


class Cgroup:
    """One of our own, in every hierarchy that counts for it."""

    def __init__(self) -> None:
        self.name = f"runlist-test-{os.getpid()}.slice"
        unified = MOUNT / "unified" if (MOUNT / "unified").is_dir() else MOUNT
        self.folders = [unified / self.name]
        self.folders += [MOUNT / name / self.name for name in ("cpu", "cpu,cpuacct") if (MOUNT / name).is_dir()]
        for folder in self.folders:
            folder.mkdir()
        files = [folder / name for folder in self.folders for name in ("cpu.weight", "cpu.shares")]
        self.file = next((file for file in files if file.exists()), None)

    def set(self, weight: int) -> None:
        assert self.file is not None
        shares = self.file.name == "cpu.shares"
        self.file.write_text(str(weight * 1024 // 100 if shares else weight))

    def put(self, pid: int) -> None:
        (self.folders[0] / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        for folder in self.folders:
            for pid in (folder / "cgroup.procs").read_text().split() if folder.exists() else []:
                with contextlib.suppress(OSError):
                    (folder.parent / "cgroup.procs").write_text(pid)
            with contextlib.suppress(OSError):
                folder.rmdir()


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    try:
        made = Cgroup()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        if made.file is None:
            pytest.skip("no cgroup has a CPU weight here: the cpu controller is off")
        yield made
    finally:
        made.close()


def test_a_weight_follows_its_cgroup(
    commands: Commands, start_daemon: Callable[..., Daemon], worker: Callable[..., Worker], cgroup: Cgroup
) -> None:
    rules = commands.folder / "rules.toml"
    rules.write_text(f'[[rule]]\nunit = "{Path(cgroup.name).stem[:12]}*.slice"\nset = {{ weight = "cgroup" }}\n')
    cgroup.set(400)
    daemon = start_daemon("--rules", str(rules))
    inside, outside = worker(), worker()
    cgroup.put(inside.pid)
    assert cgroup_of(inside.pid)[0] == f"/{cgroup.name}"
    later = worker()
    cgroup.put(later.pid)
    commands.ok("rules", "reload")
    wait_for(lambda: {task.pid for task in daemon.client.ps()} == {inside.pid, later.pid}, "those in it alone")
    assert [task_of(daemon, pid.pid).weight for pid in (inside, later)] == [400, 400]
    daemon.client.attach(outside.pid, "normal")
    for weight in (50, 1000):
        cgroup.set(weight)
        wait_for(lambda: task_of(daemon, inside.pid).weight == weight, f"weight {weight}", timeout=60)  # noqa: B023
        assert task_of(daemon, later.pid).weight == weight
    assert task_of(daemon, outside.pid).weight == 100
    daemon.client.set(later.pid, {"weight": 7})  # what its user says counts more
    cgroup.set(300)
    wait_for(lambda: task_of(daemon, inside.pid).weight == 300, "weight 300")
    assert task_of(daemon, later.pid).weight == 7

"""Tenants in containers of a real engine, Podman, with the daemon outside, as docs/guide.md sets them up."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

import runlist
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import (
    DEFAULT_SLICES,
    ROOT,
    Commands,
    Daemon,
    Slices,
    Worker,
    needs_root,
    refusal,
    task_of,
    wait_for,
)  # fmt: skip
from tests.fixtures.engine import Engine, engine
from tests.fixtures.holder import FOUR_LOOKS_S, OUT_OF_MEMORY, Holder

__all__ = ["engine"]

GiB = 1 << 30
LIBRARY = "/opt/librunlist.so"
MESSAGES = "/run/messages.sock"

pytestmark = [
    needs_root,
    pytest.mark.skipif(ON_NVIDIA, reason="an image with the driver's libraries would have to be there"),
    pytest.mark.skipif(shutil.which("podman") is None, reason="needs podman"),
]


@pytest.fixture
def place(commands: Commands, daemon: Daemon) -> tuple[dict[str, str], tuple[str, ...]]:
    """Variables and mounts of a container with the GPU, the library and the daemon's socket for messages."""
    gpu = commands.environment["RUNLIST_EMULATED_GPU"]
    names = ("LD_LIBRARY_PATH", "RUNLIST_EMULATED_GPU", "RUNLIST_DEVICE")
    variables = {name: commands.environment[name] for name in names}
    variables |= {"PYTHONPATH": str(ROOT), "LD_PRELOAD": LIBRARY, "RUNLIST_MESSAGES": MESSAGES, "RUNLIST_MEMORY": "2G"}
    mounts = (
        f"{gpu}:{gpu}", f"{runlist.library()}:{LIBRARY}:ro", f"{commands.folder / 'messages.sock'}:{MESSAGES}",
    )  # fmt: skip
    return variables, mounts


Place = tuple[dict[str, str], tuple[str, ...]]


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_a_container_is_found_scheduled_and_put_back(
    engine: Engine, place: Place, daemon: Daemon, commands: Commands, slices: Slices, tmp_path: Path
) -> None:
    variables, mounts = place
    words = engine.run("tenant", variables, (*mounts, f"{tmp_path}:{tmp_path}"))
    tenant = Worker(commands.environment, tmp_path, before=words)
    try:
        pid = engine.pid("tenant")
        commands.ok("attach", str(pid), "--class", "batch", "--cap", "50")
        task = task_of(daemon, pid)
        identity = engine.ask("inspect", "-f", "{{.Id}}", "tenant")
        assert (task.reached_by, task.container) == ("own right", identity)
        assert identity[:12] in commands.ok("ps", "--long")
        tenant.wait_for_progress()
        commands.ok("suspend", str(pid))
        tenant.assert_stopped()
        commands.ok("resume", str(pid))
        tenant.wait_for_progress()
        daemon.client.suspend(pid)
        daemon.kill()
        tenant.wait_for_progress()
        assert slices.of(pid) == DEFAULT_SLICES
        assert tenant.quit()
        assert tenant.process.wait(30) == 0
    finally:
        tenant.kill()


def test_a_containers_quota_holds_and_nothing_is_left_of_it(
    engine: Engine, place: Place, daemon: Daemon, commands: Commands
) -> None:
    variables, mounts = place
    with Holder([], commands.environment) as outside:
        assert outside.do("open") == 0
        commands.ok("attach", str(outside.pid), "--class", "batch")  # its daemon says so to others, and keeps that file
        before = descriptors(daemon.pid)
        with Holder(engine.run("held", variables, mounts), commands.environment) as inside:
            pid = engine.pid("held")
            waiting = commands.start("attach", str(pid), "--wait", "--class", "batch")
            wait_for(lambda: not refusal(lambda: daemon.client.set(pid, {})), "the command to be attached")
            assert [inside.do("open"), inside.do("take 1500"), inside.do("take 600")] == [0, 0, OUT_OF_MEMORY]
            wait_for(lambda: len(daemon.client.ps()) == 2, "the container to be managed")
            said = waiting.communicate(timeout=60)
            assert waiting.returncode == 0, said
            task = task_of(daemon, pid)
            assert (task.memory_limit_bytes, task.enforcement) == (2 * GiB, "memory, queries")
            wait_for(lambda: task_of(daemon, pid).memory_refusals == 1, "the refusal to be counted")
            room = inside.do("info")
            assert room[1] == 2048
            time.sleep(FOUR_LOOKS_S)
            assert inside.do("info") == room  # what it holds is counted once
            commands.ok("set", str(pid), "memory=3G")
            assert [inside.do("take 600"), inside.do("take 1200")] == [0, OUT_OF_MEMORY]
            engine.ask("kill", "held")
            wait_for(
                lambda: [task.pid for task in daemon.client.ps()] == [outside.pid], "the container to be forgotten"
            )
        wait_for(lambda: descriptors(daemon.pid) == before, "the daemon to close what was the container's")
        assert outside.do("take 100000") == 0
    assert "Traceback" not in daemon.log.read_text()


def test_a_container_that_may_not_look_elsewhere_is_managed_beside_another(
    engine: Engine, place: Place, daemon: Daemon, commands: Commands, tmp_path: Path
) -> None:
    """Two at a time, which share by their weights' order: both work, and ends of one do not touch the other."""
    variables, mounts = place
    tenants: list[Worker] = []
    try:
        for name in ("one", "two"):
            folder = tmp_path / name
            folder.mkdir()
            words = engine.run(name, variables, (*mounts, f"{folder}:{folder}"), "--read-only", "--cap-drop", "all")
            tenants.append(Worker(commands.environment, folder, before=words))
            commands.ok("attach", str(engine.pid(name)), "--class", "batch")
        assert len({task.container for task in daemon.client.ps()}) == 2
        for tenant in tenants:
            tenant.wait_for_progress()
        engine.ask("kill", "one")
        wait_for(lambda: len(daemon.client.ps()) == 1, "the first to be forgotten")
        tenants[1].wait_for_progress()
        commands.ok("release", "--all")
        assert tenants[1].quit()
    finally:
        for tenant in tenants:
            tenant.kill()

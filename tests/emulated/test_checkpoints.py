"""Processes that lose their contexts and get others, as one does that is checkpointed and restored."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import Commands, Daemon, Slices, Worker, task_of, wait_for
from tests.fixtures.kept import commands, daemon, kept

__all__ = ["commands", "daemon", "kept"]

Start = Callable[..., Worker]


def renew(worker: Worker) -> None:
    """Other contexts, with the driver's slices."""
    worker.do("close")
    worker.do("open")


def there(daemon: Daemon, pid: int) -> bool:
    return any(task.pid == pid for task in daemon.client.ps())


def test_new_contexts_have_the_settings_of_the_old_ones(daemon: Daemon, worker: Start, slices: Slices) -> None:
    parent = worker()
    child = parent.do("spawn")["pid"]
    daemon.client.attach(parent.pid, "normal")
    wait_for(lambda: there(daemon, child))
    daemon.client.set(parent.pid, {"timeslice": "5000us"})
    daemon.client.set(child, {"weight": "300"})
    renew(parent)
    wait_for(lambda: there(daemon, parent.pid) and slices.compute(parent.pid) == 5000, "the slice to be set again")
    assert task_of(daemon, parent.pid).timeslice_us == 5000
    assert task_of(daemon, child).weight == 300


@pytest.mark.skipif(ON_NVIDIA, reason="a suspended process cannot close its contexts there")
def test_a_suspended_process_stays_suspended_in_its_new_contexts(daemon: Daemon, worker: Start) -> None:
    tenant = worker()
    daemon.client.attach(tenant.pid)
    tenant.do("pause")
    daemon.client.suspend(tenant.pid)
    tenant.do("close")  # it has no work under way, so it can
    wait_for(lambda: not there(daemon, tenant.pid))
    tenant.send("open")  # its first work does not end
    wait_for(lambda: there(daemon, tenant.pid) and task_of(daemon, tenant.pid).suspended)
    daemon.client.resume(tenant.pid)
    tenant.read()
    tenant.wait_for_progress()


def test_what_is_set_meanwhile_counts(daemon: Daemon, worker: Start) -> None:
    tenant = worker()
    daemon.client.attach(tenant.pid)
    daemon.client.suspend(tenant.pid)
    daemon.client.resume(tenant.pid)
    tenant.do("close")
    wait_for(lambda: not there(daemon, tenant.pid))
    daemon.client.set(tenant.pid, {"timeslice": "700us", "weight": "7"})
    daemon.client.suspend(tenant.pid)
    daemon.client.resume(tenant.pid)
    tenant.do("open")
    wait_for(lambda: there(daemon, tenant.pid))
    shown = task_of(daemon, tenant.pid)
    assert (shown.timeslice_us, shown.weight, shown.suspended) == (700, 7, False)
    tenant.wait_for_progress()


def test_another_program_in_the_same_process_starts_anew(daemon: Daemon, worker: Start, commands: Commands) -> None:
    tenant = worker()
    daemon.client.attach(tenant.pid)
    tenant.send("exec")
    wait_for(lambda: not there(daemon, tenant.pid))
    daemon.client.detach(tenant.pid)
    assert commands.json("ps") == []


def test_whoever_waits_to_checkpoint_a_suspended_process_is_named(
    daemon: Daemon, worker: Start, short_path: Path
) -> None:
    tenant = worker()
    daemon.client.attach(tenant.pid)
    daemon.client.suspend(tenant.pid)
    path = str(short_path / "asking")
    pid = os.fork()
    if pid == 0:  # as cuda-checkpoint does: two pipes to the process, then it waits for an answer
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            ours, theirs = os.pipe(), os.pipe()
            asking, _ = listener.accept()
            socket.send_fds(asking, [b"x"], [ours[1], theirs[0]])
            os.close(ours[1])
            os.close(theirs[0])
            os.read(ours[0], 1)
        os._exit(0)
    try:
        wait_for(lambda: os.path.exists(path))
        wait_for(lambda: task_of(daemon, tenant.pid).suspended)
        time.sleep(2.5)  # the daemon looks once a second, and has to know it from before
        tenant.do(f"receive {path}")
        wait_for(lambda: f"process {pid} (" in task_of(daemon, tenant.pid).why, "the one who waits to be named")
        assert "resume" in task_of(daemon, tenant.pid).why
        daemon.client.resume(tenant.pid)
        wait_for(lambda: "checkpoint" not in task_of(daemon, tenant.pid).why)
        tenant.wait_for_progress()
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)

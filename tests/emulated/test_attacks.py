"""Tenants and users who try to get more than their share, or at what is not theirs."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from runlist.client import Client
from runlist.trusted import from_outside
from runlist.views.structs import TaskView
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import (
    DEFAULT_SLICES,
    NOBODY,
    As,
    Commands,
    Daemon,
    Refused,
    Slices,
    Worker,
    group_of_nobody,
    needs_root,
    refusal,
    wait_for,
)
from tests.fixtures.kept import commands, daemon, kept

__all__ = ["commands", "daemon", "kept"]

Start = Callable[..., Worker]


def _of(daemon: Daemon, worker: Worker) -> TaskView:
    return next(task for task in daemon.client.ps() if task.pid == worker.pid)


def test_a_tenant_that_changes_its_own_slice_is_put_back_and_counted(
    daemon: Daemon, worker: Start, slices: Slices
) -> None:
    tenant = worker()
    daemon.client.attach(tenant.pid, "batch")
    for count in (1, 2):
        slices.set(tenant.pid, 1_000_000)
        wait_for(lambda: slices.compute(tenant.pid) == 1, "the slice to be put back")
        assert daemon.client.ps()[0].corrections == count


def test_a_tenant_that_enables_itself_is_suspended_again_and_counted(
    daemon: Daemon, worker: Start, slices: Slices
) -> None:
    tenant, other = worker(), worker()
    for one in (tenant, other):
        daemon.client.attach(one.pid, "batch")
    daemon.client.suspend(tenant.pid)
    for _ in range(2):
        tenant.assert_stopped()
        before = _of(daemon, tenant).suspended_again
        slices.enable(tenant.pid)  # on a busy machine it is off again before it gets anything done
        wait_for(lambda before=before: _of(daemon, tenant).suspended_again > before, "that to be seen")
    tenant.assert_stopped()
    assert _of(daemon, tenant).suspensions == 1
    assert _of(daemon, other).suspended_again == 0
    daemon.client.resume(tenant.pid)
    tenant.wait_for_progress()


def test_one_that_enables_itself_between_its_turns_is_suspended_again(
    daemon: Daemon, worker: Start, slices: Slices
) -> None:
    """Two at tiny slices that run at once would stop each other for good."""
    latency, cheat, other = worker(), worker(), worker()
    daemon.client.attach(latency.pid, "latency")
    for one in (cheat, other):
        daemon.client.attach(one.pid, "batch")
    wait_for(lambda: all(_of(daemon, one).suspensions > 10 for one in (cheat, other)), "turns")
    assert [task.suspended_again for task in daemon.client.ps()] == [0, 0, 0]

    def enable() -> bool:
        slices.enable(cheat.pid)
        return _of(daemon, cheat).suspended_again > 3

    wait_for(enable, "that to be seen")
    assert (_of(daemon, other).suspended_again, _of(daemon, latency).suspended_again) == (0, 0)
    other.wait_for_progress()


def test_one_that_makes_contexts_while_it_is_off_has_not_enabled_itself(daemon: Daemon, worker: Start) -> None:
    """They run until they are found."""
    tenant, other = worker(), worker()
    for one in (tenant, other):
        daemon.client.attach(one.pid, "batch")
    tenant.wait_for_progress()
    daemon.client.suspend(tenant.pid)
    for number in range(2, 4):
        tenant.assert_stopped()
        tenant.send("context")
        wait_for(lambda number=number: _of(daemon, tenant).groups == 4 * number, "that to be found")
        daemon.client.resume(tenant.pid)  # it may be found before it has begun to work, and that then waits
        tenant.read()
        daemon.client.suspend(tenant.pid)
    assert _of(daemon, tenant).suspended_again == 0


def test_under_the_drivers_default_slices_too(daemon: Daemon, worker: Start, slices: Slices, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from runlist.policies import Decision, Policy\nclass POLICY(Policy):\n    summary = 'no slices of its own'\n"
        "    def decide(self, tasks, now):\n        return Decision({})\n"
    )
    daemon.client.use_policy(str(own), {})
    tenants = [worker(), worker()]
    for tenant in tenants:
        daemon.client.attach(tenant.pid, "latency")
    slices.set(tenants[0].pid, 500_000)
    wait_for(lambda: slices.of(tenants[0].pid) == DEFAULT_SLICES, "the slices to be put back")
    assert {task.pid: task.corrections for task in daemon.client.ps()} == {tenants[0].pid: 1, tenants[1].pid: 0}


def test_what_a_tenant_did_before_is_what_it_gets_back(daemon: Daemon, worker: Start, slices: Slices) -> None:
    tenant = worker()
    slices.set(tenant.pid, 7_000)
    daemon.client.attach(tenant.pid, "batch")
    daemon.client.detach(tenant.pid)
    assert slices.of(tenant.pid) == [7_000] * 4


def test_slices_are_not_corrected_where_the_daemon_changed_them(daemon: Daemon, worker: Start) -> None:
    tenant = worker()
    daemon.client.attach(tenant.pid, "batch")
    for value in ("1", "100", "auto", "1000000", "auto"):
        daemon.client.set(tenant.pid, {"timeslice": value})
        tenant.wait_for_progress(1)
    assert daemon.client.ps()[0].corrections == 0


def test_two_tiny_slices_asked_for_by_hand_do_not_stop_each_other(
    daemon: Daemon, worker: Start, slices: Slices
) -> None:
    tenants = [worker(), worker()]
    for tenant in tenants:
        daemon.client.attach(tenant.pid, "latency")
        daemon.client.set(tenant.pid, {"timeslice": "1"})
    assert sorted(slices.compute(tenant.pid) for tenant in tenants) == [1, 2048]
    for tenant in tenants:
        tenant.wait_for_progress()


# -- other users -----------------------------------------------------------------------------------


@pytest.fixture
def shared_daemon(start_daemon: Callable[..., Daemon], commands: Commands) -> Daemon:
    """Root's daemon, with a socket that nobody's group may use."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    return start_daemon("--group", group_of_nobody())


def as_nobody(request: Callable[[Client], object]) -> object:
    def ask() -> object:
        with Client.open() as client:
            return request(client)

    return As(NOBODY)(ask)


def test_a_user_manages_only_its_own_processes(shared_daemon: Daemon, worker: Start, slices: Slices) -> None:
    roots, launcher = worker(), os.getpid()
    pid = roots.pid
    with pytest.raises(Refused, match="belongs to user 0") as refused:
        as_nobody(lambda client: client.attach(pid, "batch"))
    assert refused.value.exit_code == 3
    shared_daemon.client.attach(pid, "batch")
    for request in (
        lambda client: client.attach(pid, "latency"),
        lambda client: client.set(pid, {"class": "latency"}),
        lambda client: client.suspend(pid),
        lambda client: client.resume(pid),
        lambda client: client.detach(pid),
        lambda client: client.launch(launcher, "batch"),
    ):
        with pytest.raises(Refused, match="belongs to user 0") as refused:
            as_nobody(request)
        assert refused.value.exit_code == 3
    assert as_nobody(lambda client: client.ps()) == []
    assert as_nobody(lambda client: client.release()) == []
    assert slices.compute(pid) == 1
    roots.wait_for_progress()


def test_only_the_owner_switches_policies_and_stops_the_daemon(shared_daemon: Daemon) -> None:
    """A policy file is code that runs with the daemon's rights."""
    for request in (
        lambda client: client.use_policy("gpreempt", {}),
        lambda client: client.use_policy("/tmp/evil.py", {}),
        lambda client: client.stop(),
    ):
        with pytest.raises(Refused, match="only root and the daemon's own user") as refused:
            as_nobody(request)
        assert refused.value.exit_code == 3
    assert shared_daemon.client.status().policy == "priority"


def test_a_user_manages_its_own_processes_by_roots_daemon(shared_daemon: Daemon, worker: Start, slices: Slices) -> None:
    tenant, roots = worker(), worker()
    tenant.do(f"setuid {NOBODY}")
    shared_daemon.client.attach(roots.pid, "batch")
    pid = tenant.pid
    (task,) = as_nobody(lambda client: client.attach(pid, "batch"))  # type: ignore[misc]
    assert (task.user, task.pid) == (NOBODY, pid)
    assert [task.pid for task in as_nobody(lambda client: client.ps())] == [pid]  # type: ignore[attr-defined]
    assert len(shared_daemon.client.ps()) == 2
    as_nobody(lambda client: client.set(pid, {"timeslice": "3000"}))
    assert slices.compute(pid) == 3000
    as_nobody(lambda client: client.release())
    assert slices.of(pid) == DEFAULT_SLICES
    assert [task.pid for task in shared_daemon.client.ps()] == [roots.pid]


@needs_root
def test_what_others_run_is_not_told(
    start_daemon: Callable[..., Daemon], commands: Commands, worker: Start, tmp_path: Path
) -> None:
    (tmp_path / "rules.toml").write_text("[limits]\ntasks = 2\n")
    daemon = start_daemon("--group", group_of_nobody(), "--rules", str(tmp_path / "rules.toml"), "--policy", "gpreempt")
    roots, waits, tenant = worker(), worker(), worker()
    tenant.do(f"setuid {NOBODY}")
    pid = tenant.pid
    daemon.client.attach(roots.pid, "batch")
    with pytest.raises(Refused, match=rf"{roots.pid} \(of another user\) is one"):
        as_nobody(lambda client: client.attach(pid, "batch"))
    as_nobody(lambda client: client.attach(pid, "latency"))
    daemon.client.attach(waits.pid, "latency")
    (waiting,) = daemon.client.status().waiting
    assert f"process {waits.pid} (" in waiting
    assert as_nobody(lambda client: (client.status().waiting, client.status().others_waiting)) == ([], 1)


def test_a_process_that_became_another_user_is_not_managed_with_its_parent(
    shared_daemon: Daemon, worker: Start, slices: Slices
) -> None:
    """What nobody started through sudo, say, is not nobody's."""
    tenant = worker(idle=True)
    child = tenant.do("spawn")["pid"]  # stays root
    tenant.do(f"setuid {NOBODY}")
    pid = tenant.pid
    assert as_nobody(lambda client: client.attach(pid, "batch", wait=True)) == []
    assert slices.of(child) == DEFAULT_SLICES
    os.kill(child, signal.SIGKILL)


@needs_root
def test_a_socket_that_is_not_for_all_is_no_permission(daemon: Daemon, commands: Commands) -> None:
    commands.folder.chmod(0o755)
    with pytest.raises(Refused, match="no right to use the daemon's socket") as refused:
        as_nobody(lambda client: client.ps())
    assert refused.value.exit_code == 3


@needs_root
def test_who_serves_from_outside_a_user_namespace_is_not_told_in_it(commands: Commands) -> None:
    """Root has another number there: its socket is no rubbish to be removed."""
    commands.folder.chmod(0o711)

    def ask() -> str:
        from_outside.cache_clear()
        assert ctypes.CDLL(None).unshare(0x10000000) == 0
        Path("/proc/self/uid_map").write_text(f"0 {NOBODY} 1")
        return refusal(Client.open)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(commands.socket))
        listener.listen()
        commands.socket.chmod(0o666)
        assert "is served from outside this user namespace" in As(NOBODY)(ask)
    commands.socket.unlink()


@needs_root
def test_a_socket_put_there_by_somebody_else_is_not_trusted(commands: Commands) -> None:
    """Nobody listens where root's commands look: root must not talk to it."""
    commands.folder.chmod(0o777)
    reader, writer = os.pipe()
    evil = os.fork()
    if evil == 0:
        os.setresuid(NOBODY, NOBODY, NOBODY)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(commands.socket))
            listener.listen()
            os.write(writer, b"x")
            signal.pause()
    try:
        assert os.read(reader, 1) == b"x"
        assert f"is served by user {NOBODY}" in commands.fails(3, "ps")
        assert "is served by user" in commands.fails(3, "attach", str(os.getpid()))
        done = commands.run("daemon")
        assert done.returncode == 3
        assert "others can write there" in done.stderr
    finally:
        os.kill(evil, signal.SIGKILL)
        os.waitpid(evil, 0)
        os.close(reader)
        os.close(writer)


@needs_root
@pytest.mark.skipif(ON_NVIDIA, reason="opens up the emulated GPU's folder")
def test_without_the_right_to_borrow_there_is_no_permission(commands: Commands, worker: Start) -> None:
    """A daemon run by nobody, and a process of nobody that does not let itself be looked into."""
    from runlist.planes.nvidia.discover import Discoverer
    from runlist.planes.nvidia.rm.transport import choose_driver
    from runlist.proc.borrow import OwnRight

    gpu = Path(commands.environment["RUNLIST_EMULATED_GPU"])
    opened = [gpu.parent, gpu, gpu / "nvidiactl"]
    modes = [path.stat().st_mode for path in opened]
    tenant = worker()
    tenant.do(f"setuid {NOBODY}")
    pid = tenant.pid

    def discover() -> int:
        discoverer = Discoverer(choose_driver())
        return len(discoverer.discover(pid, os.pidfd_open(pid), OwnRight()))

    try:
        for path in opened:
            path.chmod(0o777)
        assert As(NOBODY)(discover) == 1
        tenant.do("dumpable 0")
        with pytest.raises(Refused, match=rf"no right to borrow from process {pid}") as refused:
            As(NOBODY)(discover)
        assert refused.value.exit_code == 3
        roots = worker()
        pid = roots.pid
        with pytest.raises(Refused, match="no right to borrow"):
            As(NOBODY)(discover)
    finally:
        for path, mode in zip(opened, modes, strict=True):
            path.chmod(mode & 0o7777)

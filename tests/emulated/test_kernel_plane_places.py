"""The daemon where the kernel plane cannot be, or where its tenants are in namespaces of their own."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from runlist.planes.kernel import btf
from runlist.proc import cgroup
from runlist.proc.process import names_of
from tests.emulated.test_kernel_plane import (
    WAITS,
    finding,
    loader_of,
    managed,
    names_for_maps,
    own_cgroup,
    ruled,
    twin,
)  # fmt: skip
from tests.fixtures.daemon import ROOT, Commands, Daemon, Slices, Worker, remove_cgroup, wait_for
from tests.fixtures.kernel import needs_kernel

__all__ = ["names_for_maps", "own_cgroup", "ruled", "twin"]
pytestmark = needs_kernel
Start = Callable[..., Worker]
_CLONE_NEWNS, _MS_PRIVATE, _DROP = 0x20000, 1 << 18 | 1 << 14, 24
_SYS_ADMIN, _PERFMON, _BPF = 21, 38, 39
_NO_RIGHT = "no right to load programs"
_libc = ctypes.CDLL(None, use_errno=True)


def without(*capabilities: int) -> Callable[[], None]:
    """What a process does that becomes a program without these."""

    def drop() -> None:
        for each in capabilities:
            assert _libc.prctl(_DROP, each, 0, 0, 0) == 0

    return drop


def hide_types() -> None:
    """It sees no types of the kernel from then on."""
    assert _libc.unshare(_CLONE_NEWNS) == 0
    assert _libc.mount(None, b"/", None, _MS_PRIVATE, None) == 0
    assert _libc.mount(b"none", bytes(btf.KERNEL.parent), b"tmpfs", 0, None) == 0


def hide_cgroups() -> None:
    """It sees no unified hierarchy of cgroups, as on hosts that have the older ones alone."""
    assert _libc.unshare(_CLONE_NEWNS) == 0
    assert _libc.mount(None, b"/", None, _MS_PRIVATE, None) == 0
    assert _libc.mount(b"none", bytes(cgroup.MOUNT), b"tmpfs", 0, None) == 0


@pytest.mark.parametrize("lacks", ["BPF", "PERFMON"])
def test_without_a_right_all_goes_on_and_is_said_in_one_line(
    twin: Path, commands: Commands, start_daemon: Callable[..., Daemon], worker: Start, slices: Slices, lacks: str
) -> None:
    """CAP_SYS_ADMIN stands for both others."""
    commands.options["preexec_fn"] = without(_SYS_ADMIN, _BPF if lacks == "BPF" else _PERFMON)
    daemon = start_daemon()
    tenant = worker()
    daemon.client.attach(tenant.pid, "batch")
    (task,) = managed(daemon, tenant.pid)
    assert slices.compute(tenant.pid) == task.timeslice_us
    assert task.kernel_groups is None
    assert daemon.client.policy_map().enforced.startswith(f"nobody: {_NO_RIGHT}")
    assert daemon.client.status().kernel_plane.startswith(_NO_RIGHT)
    found = finding(commands.run("doctor", "--json").stdout)
    assert found["state"] == "warn"
    assert _NO_RIGHT in found["detail"]
    assert "\n" not in found["detail"]


def test_where_the_kernel_does_not_tell_its_types_the_plane_works_and_says_what_it_lacks(
    twin: Path, commands: Commands, start_daemon: Callable[..., Daemon], worker: Start
) -> None:
    commands.options["preexec_fn"] = hide_types
    daemon = start_daemon()
    wait_for(lambda: WAITS in daemon.log.read_text())
    tenant = worker()
    daemon.client.attach(tenant.pid, "batch")
    wait_for(lambda: [task.kernel_groups for task in managed(daemon, tenant.pid)] == [4])
    assert "the kernel does not tell its types" in daemon.client.policy_map().enforced
    found = finding(commands.run("doctor", "--json").stdout)
    assert found["state"] == "ok"
    assert "the kernel does not tell its types" in found["detail"]
    assert "\n" not in found["detail"]


@contextlib.contextmanager
def own_processes(words: list[str], environment: dict[str, str]) -> Iterator[int]:
    """A program in a pid namespace of its own, with its own /proc; the number that it has outside."""
    own = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--cgroup"]
    with subprocess.Popen([*own, *words], env=environment, cwd=ROOT) as process:
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            wait_for(lambda: children.read_text().split())
            yield int(children.read_text())
        finally:
            process.kill()


def test_a_daemon_in_a_pid_namespace_goes_on_without(twin: Path, commands: Commands, tmp_path: Path) -> None:
    """The kernel would tell it of numbers that are other processes' there."""
    ready = tmp_path / "ready"
    ready.touch()
    words = ["sh", "-c", 'exec "$@" 3>"$0"', str(ready), sys.executable, "-m", "runlist.daemon", "--ready-fd", "3"]
    with own_processes(words, commands.environment) as pid:
        wait_for(lambda: ready.read_text().strip() == "ready")
        inside = ["nsenter", "--target", str(pid), "--pid", "--mount"]

        def ask(*asked: str) -> str:
            command = [*inside, sys.executable, "-m", "runlist.cli", *asked]
            return subprocess.run(command, env=commands.environment, capture_output=True, text=True, check=True).stdout

        assert "nobody: runlist is in a pid namespace" in ask("policy", "map", "show")
        found = finding(ask("doctor", "--json"))
        assert found["state"] == "warn"
        assert "pid namespace" in found["detail"]
        assert "\n" not in found["detail"]
        batch = [sys.executable, "-m", "runlist.workloads.batch", "--seconds", "60"]
        run = [*inside, sys.executable, "-m", "runlist.cli", "run", "--class", "batch", "--", *batch]
        with subprocess.Popen(run, env=commands.environment, stdout=subprocess.DEVNULL) as running:
            try:
                wait_for(lambda: [task["task_class"] for task in json.loads(ask("ps", "--json"))] == ["batch"])
            finally:
                running.kill()


def numbers_inside(pid: int) -> int:
    """The number that a process has in its own pid namespace."""
    return names_of(pid)[-1]


@pytest.fixture
def contained(commands: Commands, own_cgroup: Path) -> Iterator[Callable[..., int]]:
    """Starts programs in a container of their own: with its processes, its /proc, its cgroups and, if asked, its users.
    The number of the process outside.
    """
    with contextlib.ExitStack() as stack:

        def start(*extra: str) -> int:
            words = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec unshare --cgroup "$@"', str(own_cgroup), *extra]
            batch = ["--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-m", "runlist.workloads.batch"]
            process = stack.enter_context(
                subprocess.Popen([*words, *batch, "--seconds", "600"], env=commands.environment)
            )
            stack.callback(process.kill)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            wait_for(lambda: children.read_text().split())
            return int(children.read_text())

        yield start


@pytest.mark.parametrize("extra", [(), ("--user", "--map-root-user")], ids=["its processes", "its users, too"])
def test_a_tenant_in_a_pid_namespace_is_itself(
    ruled: Callable[[str], Daemon], own_cgroup: Path, contained: Callable[..., int], extra: tuple[str, ...]
) -> None:
    """Inside it is number 1, as who is there outside is not. Its cgroup is the root of its own cgroup namespace."""
    daemon = ruled(f'[[rule]]\ncgroup = "/{own_cgroup.name}"\nset = {{ class = "batch", weight = 50 }}\n')
    pid = contained(*extra)
    assert numbers_inside(pid) == 1
    wait_for(partial(managed, daemon, pid))
    wait_for(lambda: [(task.groups, task.kernel_groups) for task in managed(daemon, pid)] == [(4, 4)])
    (task,) = daemon.client.ps()
    assert (task.pid, task.task_class, task.weight, task.rule) == (pid, "batch", 50, "rules.toml:1")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not daemon.client.ps())


def test_a_cgroup_that_the_map_does_not_know_yet_is_that_of_its_rule(
    ruled: Callable[[str], Daemon], own_cgroup: Path, worker: Start
) -> None:
    """The kernel's programs find the other entry for it, by which no process of that cgroup goes."""
    daemon = ruled(
        f'[[rule]]\ncgroup = "/{own_cgroup.name}/new"\nset = {{ class = "latency" }}\n'
        '[[rule]]\nuser = 0\nset = { class = "batch" }\n'
    )
    tenant = worker(idle=True)
    new = own_cgroup / "new"
    new.mkdir()
    (new / "cgroup.procs").write_text(str(tenant.pid))
    tenant.do("context")
    wait_for(partial(managed, daemon, tenant.pid))
    (task,) = managed(daemon, tenant.pid)
    assert (task.task_class, task.rule) == ("latency", "rules.toml:1")
    tenant.kill()
    remove_cgroup(new)


def test_without_the_unified_hierarchy_entries_by_cgroup_wait_and_others_count(
    ruled: Callable[[str], Daemon], commands: Commands, worker: Start
) -> None:
    commands.options["preexec_fn"] = hide_cgroups
    daemon = ruled(
        '[[rule]]\ncgroup = "/"\nset = { class = "latency" }\n[[rule]]\nuser = 0\nset = { class = "batch" }\n'
    )
    assert [(entry.cgroup_id, entry.waits) for entry in daemon.client.policy_map().entries] == [
        (None, True), (None, False),
    ]  # fmt: skip
    tenant = worker()
    wait_for(partial(managed, daemon, tenant.pid))
    assert managed(daemon, tenant.pid)[0].kernel_groups


# -- process ids that are used again -----------------------------------------------------------------


def again(pid: int, start: Callable[[], Worker]) -> Worker:
    """A worker with the number of one that has ended."""
    last = Path("/proc/sys/kernel/ns_last_pid")
    if not last.exists():
        pytest.skip("this kernel lets nobody choose the next process id")
    for _ in range(100):
        last.write_text(str(pid - 1))
        one = start()
        if one.pid == pid:
            return one
        one.kill()
    pytest.fail("others take every number")


def test_one_that_has_the_number_of_another_is_not_it(ruled: Callable[[str], Daemon], worker: Start) -> None:
    """All that the kernel tells of the first one is read only when the second one has its number, and groups."""
    daemon = ruled('[[rule]]\nuser = 0\nset = { class = "batch" }\n')
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        first = worker()
        first.kill()
        second = again(first.pid, worker)
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    wait_for(lambda: [(task.groups, task.kernel_groups) for task in managed(daemon, second.pid)] == [(4, 4)])
    second.kill()
    wait_for(lambda: not daemon.client.ps())


def test_one_that_has_the_number_of_another_that_ended_unseen_is_not_it(
    names_for_maps: None, ruled: Callable[[str], Daemon], worker: Start
) -> None:
    """No programs run while the loader is gone: the first one's record stays."""
    daemon = ruled('[[rule]]\nuser = 0\nset = { class = "batch" }\n')
    daemon.faults = ("its loader ended",)
    first = worker()
    wait_for(lambda: [task.kernel_groups for task in managed(daemon, first.pid)] == [4])
    before = loader_of(daemon)
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: daemon.client.policy_map().enforced.startswith("nobody: its loader ended"))
    first.kill()
    second = again(first.pid, partial(worker, idle=True))
    wait_for(lambda: loader_of(daemon) not in (0, before))
    wait_for(lambda: not daemon.client.policy_map().enforced.startswith("nobody"))
    second.do("open")
    wait_for(lambda: [(task.groups, task.kernel_groups) for task in managed(daemon, second.pid)] == [(4, 4)])

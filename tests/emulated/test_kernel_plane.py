"""The daemon with the kernel plane. On the emulated GPU programs repeat what the device has answered as true ioctls on
a file that answers anything (RUNLIST_EMULATED_TWIN): the kernel's programs see those, as they would see a driver's.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from bench.harness.ioctl_file import ioctl_file
from runlist.planes.kernel import rights
from runlist.proc import cgroup
from runlist.proc.process import descendants
from runlist.proc.words import command_line
from runlist.protocol import emulator_autogen
from runlist.views.structs import TaskView
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import Commands, Daemon, Slices, Worker, remove_cgroup, wait_for
from tests.fixtures.kernel import CHANNEL, COMPUTE, GROUP, SET_TIMESLICE, Asking, needs_kernel

pytestmark = needs_kernel
Start = Callable[..., Worker]
LOADER = "runlist.planes.kernel.loader"
WAITS = "the kernel tells of requests"


@pytest.fixture
def twin(commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the emulated CUDA's requests are seen."""
    with contextlib.ExitStack() as stack:
        commands.environment["RUNLIST_KERNEL_PLANE"] = "on"
        monkeypatch.setenv("RUNLIST_KERNEL_PLANE", "on")
        if not ON_NVIDIA:
            path = stack.enter_context(ioctl_file(tmp_path / "twin"))
            commands.environment["RUNLIST_EMULATED_TWIN"] = str(path)
            monkeypatch.setenv("RUNLIST_EMULATED_TWIN", str(path))
        yield tmp_path / "twin"


@pytest.fixture
def seeing(twin: Path, start_daemon: Callable[..., Daemon]) -> Daemon:
    """A daemon that the kernel tells of requests."""
    daemon = start_daemon()
    wait_for(lambda: WAITS in daemon.log.read_text())
    return daemon


@pytest.fixture
def blind(commands: Commands) -> Iterator[None]:
    """Nobody hears that the emulated GPU was opened."""
    if ON_NVIDIA:
        pytest.skip("the driver's files stay where they are")
    opened = Path(commands.environment["RUNLIST_EMULATED_GPU"]) / emulator_autogen.OPENED_FILE
    hidden = opened.with_name("hidden")
    opened.rename(hidden)
    yield
    hidden.rename(opened)


def loader_of(daemon: Daemon) -> int:
    """The process id of a daemon's loader, 0 where there is none."""
    below = descendants([daemon.pid])[daemon.pid]
    return next((pid for pid in below if LOADER in command_line(pid)), 0)


def finding(said: str) -> dict[str, str]:
    """What doctor says of this plane, as JSON."""
    (found,) = [each for each in json.loads(said)["findings"] if each["what"] == "kernel plane"]
    return dict(found)


def managed(daemon: Daemon, pid: int) -> list[TaskView]:
    return [task for task in daemon.client.ps() if task.pid == pid]


def at_once(act: Callable[[], object], seen: Callable[[], object], within_s: float, in_a_row: int) -> int:
    """Do something until so many times in a row it was seen so soon, which on a busy machine may take some more times.
    Returns how often.
    """
    row = done = 0
    while row < in_a_row:
        assert done < 4 * in_a_row, f"{row} of {in_a_row} in a row within {within_s} s"
        act()
        done += 1
        began = time.monotonic()
        wait_for(seen)
        row = row + 1 if time.monotonic() - began < within_s else 0
    return done


def test_a_process_is_managed_when_its_groups_are_made(
    seeing: Daemon, blind: None, worker: Start, slices: Slices
) -> None:
    """Without a sign, a daemon looks every 10 s; here nothing else tells it."""
    parent = worker()
    seeing.client.attach(parent.pid, "batch")
    time.sleep(2)  # from here on it looks seldom
    for _ in range(2):
        child = int(parent.do("spawn")["pid"])
        wait_for(partial(managed, seeing, child), timeout=8)
        wait_for(lambda child=child: [task.channels for task in managed(seeing, child)] == [20])
        (task,) = managed(seeing, child)
        assert task.groups == 4
        assert slices.of(child)[0] == task.timeslice_us
        os.kill(child, signal.SIGKILL)
        wait_for(lambda child=child: not managed(seeing, child))


def test_ps_shows_what_the_kernel_saw_a_process_make(seeing: Daemon, worker: Start, commands: Commands) -> None:
    assert seeing.client.status().kernel_plane == "on"
    tenant = worker()
    seeing.client.attach(tenant.pid, "batch")
    wait_for(lambda: [task.channels for task in managed(seeing, tenant.pid)] == [20])
    (task,) = managed(seeing, tenant.pid)
    assert (task.kernel_groups, task.kernel_channels) == (task.groups, task.channels)
    assert task.kernel_compute
    assert task.kernel_copy
    shown = commands.ok("ps", "--long")
    assert f"4 groups, 20 channels: {task.kernel_compute} compute, {task.kernel_copy} copy" in shown


def test_without_the_plane_ps_shows_nothing_of_it(
    commands: Commands, start_daemon: Callable[..., Daemon], worker: Start
) -> None:
    daemon = start_daemon()
    tenant = worker()
    daemon.client.attach(tenant.pid, "batch")
    (task,) = managed(daemon, tenant.pid)
    assert (task.kernel_groups, task.kernel_channels, task.kernel_compute, task.kernel_copy) == (None,) * 4
    assert "KERNEL SAW" not in commands.ok("ps", "--long")


def test_a_slice_that_a_process_sets_itself_is_put_back_at_once(seeing: Daemon, worker: Start, slices: Slices) -> None:
    """Asking finds it within three seconds: four times in a row sooner is no chance."""
    tenant = worker()
    seeing.client.attach(tenant.pid, "batch")
    ours = slices.compute(tenant.pid)

    def set_it() -> None:
        assert tenant.do("slice 5000")["refused"] == 0

    done = at_once(set_it, lambda: slices.compute(tenant.pid) == ours, 0.7, in_a_row=4)
    assert seeing.client.ps()[0].corrections == done


def _moves(worker: Worker) -> bool:
    before = worker.count
    time.sleep(0.1)
    return worker.count != before


def test_a_suspended_process_that_enables_itself_is_off_again_at_once(seeing: Daemon, worker: Start) -> None:
    """By its use of the GPU that is seen within two seconds: eight times in a row sooner is no chance."""
    tenant = worker()
    seeing.client.attach(tenant.pid, "batch")
    seeing.client.suspend(tenant.pid)

    def enable() -> None:
        assert tenant.do("enable")["refused"] == 0
        time.sleep(0.1)

    at_once(enable, lambda: not _moves(tenant), 0.7, in_a_row=8)
    seeing.client.resume(tenant.pid)
    tenant.wait_for_progress()


@pytest.mark.parametrize("more", [(), (0x5C00_9999,)], ids=["all", "up to one that is not there"])
def test_who_is_stopped_by_a_stranger_runs_again_at_once(
    seeing: Daemon, worker: Start, slices: Slices, more: tuple[int, ...]
) -> None:
    """Without the plane that takes three seconds at least. A list is done up to what the driver does not know."""
    victim, stranger = worker(), worker()
    seeing.client.attach(victim.pid, "latency")
    (context,) = slices.contexts(victim.pid)
    channels = [channel for group in context.groups.values() for channel in group.channels] + [*more]

    def stop() -> None:
        assert stranger.do(f"stop {context.client} {' '.join(map(str, channels))}")["refused"] == 0

    at_once(stop, lambda: _moves(victim), 1.0, in_a_row=4)
    context.handle.close()


def test_a_slice_is_put_back_that_was_not_told_of(seeing: Daemon, worker: Start, slices: Slices) -> None:
    """Another thread may have made the request look like another one. But that there was one is known: the daemon asks
    within three seconds, and not within thirty.
    """
    tenant = worker()
    seeing.client.attach(tenant.pid, "batch")
    ours = slices.compute(tenant.pid)
    for _ in range(4):
        slices.set(tenant.pid, 5000)  # on the emulated GPU the kernel sees no requests of the test's
        assert tenant.do("ask")["refused"] == 0
        wait_for(lambda: slices.compute(tenant.pid) == ours, timeout=20)
    assert seeing.client.ps()[0].corrections == 4


def test_the_loader_has_two_rights_and_no_more(seeing: Daemon) -> None:
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{loader_of(seeing)}/status").read_text().splitlines() if ":" in line
    )
    two = 1 << rights.BPF | 1 << rights.PERFMON
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm")} == {two}
    assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
    assert status["NoNewPrivs"].strip() == "1"


def test_a_killed_loader_is_started_again_and_said_once(seeing: Daemon, worker: Start, slices: Slices) -> None:
    seeing.faults = ("its loader ended",)
    tenant = worker()
    seeing.client.attach(tenant.pid, "batch")
    for _ in range(2):
        before = loader_of(seeing)
        os.kill(before, signal.SIGKILL)
        wait_for(lambda before=before: loader_of(seeing) not in (0, before))
        wait_for(lambda: seeing.log.read_text().count(WAITS) >= 2)
    assert seeing.log.read_text().count("its loader ended") == 1
    ours = slices.compute(tenant.pid)
    wait_for(lambda: tenant.do("slice 5000")["refused"] == 0 and _soon(lambda: slices.compute(tenant.pid) == ours))
    other = worker()
    seeing.client.attach(other.pid, "batch")
    assert {task.pid for task in seeing.client.ps()} == {tenant.pid, other.pid}


def _soon(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_a_program_with_a_file_of_its_own_deceives_nobody(
    seeing: Daemon, worker: Start, slices: Slices, tmp_path: Path
) -> None:
    """It says that it has another's client, and changed its slice: the daemon sees whose file that is, and asks."""
    tenant = worker()
    seeing.client.attach(tenant.pid, "batch")
    (context,) = slices.contexts(tenant.pid)
    before = seeing.client.ps()
    with ioctl_file(tmp_path / "other") as path:
        own = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        asking = Asking(own, context.client)
        for at in range(0, 600, 3):
            asking.made(context.client, 0x5D000000 + at, GROUP)
            asking.made(0x5D000000 + at, 0x5D000001 + at, CHANNEL)
            asking.made(0x5D000001 + at, 0x5D000002 + at, COMPUTE)
        group = next(iter(context.groups))
        asking.controlled(group, SET_TIMESLICE)
        asking.freed(group)
        asking.freed(context.client)
        time.sleep(0.3)
        os.close(own)
    assert [(task.pid, task.groups, task.channels) for task in seeing.client.ps()] == [
        (task.pid, task.groups, task.channels) for task in before
    ]
    assert seeing.client.ps()[0].corrections == 0
    tenant.wait_for_progress()


def test_ended_processes_leave_no_entries(seeing: Daemon, worker: Start) -> None:
    tenant = worker()
    seeing.client.attach(tenant.pid, "batch")
    tenant.kill()
    wait_for(lambda: not seeing.client.ps())
    other = worker()
    seeing.client.attach(other.pid, "batch")
    assert [task.groups for task in seeing.client.ps()] == [4]


def test_doctor_says_that_it_works(twin: Path, commands: Commands) -> None:
    (found,) = [
        each
        for each in json.loads(commands.run("doctor", "--json").stdout)["findings"]
        if each["what"] == "kernel plane"
    ]
    assert found["state"] == "ok"


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv, to give rights up")
def test_without_the_right_all_goes_on_and_is_said_in_one_line(
    twin: Path, commands: Commands, worker: Start, slices: Slices
) -> None:
    without = ["setpriv", "--bounding-set=-bpf,-perfmon,-sys_admin", "--inh-caps=-bpf,-perfmon,-sys_admin"]
    words = [*without, sys.executable, "-m", "runlist.cli", "doctor", "--json"]
    done = subprocess.run(words, env=commands.environment, capture_output=True, text=True, check=False)
    found = finding(done.stdout)
    assert found["state"] == "warn"
    assert "CAP_BPF" in found["detail"]
    assert "\n" not in found["detail"]


# -- the policy map --------------------------------------------------------------------------------


@pytest.fixture
def ruled(twin: Path, start_daemon: Callable[..., Daemon], tmp_path: Path) -> Callable[[str], Daemon]:
    """A daemon with these rules, which the kernel tells of requests."""

    def start(rules: str) -> Daemon:
        (tmp_path / "rules.toml").write_text(rules)
        daemon = start_daemon("--rules", str(tmp_path / "rules.toml"))
        wait_for(lambda: not daemon.client.policy_map().enforced.startswith("nobody"))
        return daemon

    return start


@pytest.fixture
def own_cgroup() -> Iterator[Path]:
    """A cgroup for what a test starts."""
    above = next(path for path in (cgroup.MOUNT / "unified", cgroup.MOUNT) if (path / "cgroup.controllers").exists())
    made = above / f"runlist-test-{os.getpid()}"
    made.mkdir()
    yield made
    remove_cgroup(made)


def test_a_group_gets_its_class_by_its_cgroup_as_it_is_made(
    ruled: Callable[[str], Daemon], own_cgroup: Path, worker: Start, commands: Commands
) -> None:
    """Nobody attaches it, and what it calls itself matters to no rule: the kernel's word about its cgroup does it."""
    daemon = ruled(f'[[rule]]\ncgroup = "/{own_cgroup.name}"\nset = {{ class = "batch", weight = 50 }}\n')
    (entry,) = daemon.client.policy_map().entries
    assert (entry.cgroup_id, entry.places, entry.waits) == (own_cgroup.stat().st_ino, True, False)
    tenant = worker(idle=True)
    (own_cgroup / "cgroup.procs").write_text(str(tenant.pid))
    tenant.do("context")
    wait_for(partial(managed, daemon, tenant.pid))
    (task,) = managed(daemon, tenant.pid)
    assert (task.task_class, task.weight, task.rule) == ("batch", 50, "rules.toml:1")
    assert f"/{own_cgroup.name}" in commands.ok("policy", "map", "show")
    tenant.kill()


def test_an_own_slice_that_the_map_forbids_is_refused_or_suspends(
    ruled: Callable[[str], Daemon], worker: Start, slices: Slices
) -> None:
    daemon = ruled('[[rule]]\nuser = 0\nset = { class = "batch" }\nrefuse = { slices = true }\n')
    tenant = worker()
    wait_for(partial(managed, daemon, tenant.pid))
    ours = slices.compute(tenant.pid)
    time.sleep(1.6)  # until then CUDA may set slices of its own
    tenant.send("slice 5000")
    wait_for(lambda: managed(daemon, tenant.pid)[0].requests_refused, "counted")
    (task,) = managed(daemon, tenant.pid)
    if daemon.client.policy_map().enforced == "the kernel refuses (BPF_LSM)":
        assert not task.suspended
    else:
        wait_for(lambda: managed(daemon, tenant.pid)[0].suspended)
        assert "changed how it is scheduled itself, which rules.toml:1 forbids" in managed(daemon, tenant.pid)[0].why
        wait_for(lambda: slices.compute(tenant.pid) == ours)
        daemon.client.resume(tenant.pid)
        assert not managed(daemon, tenant.pid)[0].suspended
    assert managed(daemon, tenant.pid)[0].controls_asked >= managed(daemon, tenant.pid)[0].requests_refused


def test_a_reload_changes_the_map_and_a_bad_line_changes_nothing(
    ruled: Callable[[str], Daemon], commands: Commands, tmp_path: Path
) -> None:
    daemon = ruled('[[rule]]\ncomm = "one"\nset = { class = "batch" }\n')
    before = daemon.client.policy_map()
    assert [entry.comm for entry in before.entries] == ["one"]
    file = tmp_path / "rules.toml"
    file.write_text('[[rule]]\ncomm = "two"\n[[rule]]\ncommand = "*x*"\nrefuse = { slices = true }\n')
    assert "rules.toml:5" in commands.fails(2, "rules", "reload")
    assert daemon.client.policy_map() == before
    file.write_text('[[rule]]\ncomm = ["two", "three"]\nrefuse = { groups = 4 }\n[[rule]]\ncgroup = "/not-there"\n')
    commands.ok("rules", "reload")
    after = daemon.client.policy_map().entries
    assert [(entry.comm, entry.cgroup, entry.waits) for entry in after] == [
        ("three", "", False),
        ("two", "", False),
        ("", "/not-there", True),
    ]


def test_entries_come_and_go_with_their_cgroups_and_too_many_change_nothing(
    ruled: Callable[[str], Daemon], own_cgroup: Path, commands: Commands, tmp_path: Path
) -> None:
    inner = own_cgroup / "inner"
    daemon = ruled(f'[[rule]]\ncgroup = "/{own_cgroup.name}/inner"\nset = {{ class = "batch" }}\n')
    assert [entry.waits for entry in daemon.client.policy_map().entries] == [True]
    for _ in range(2):
        inner.mkdir()
        wait_for(lambda: [entry.cgroup_id for entry in daemon.client.policy_map().entries] == [inner.stat().st_ino])
        inner.rmdir()
        wait_for(lambda: [entry.waits for entry in daemon.client.policy_map().entries] == [True])
    daemon.faults = ("the policy map stays as it was",)
    names = ", ".join(f'"t{number}"' for number in range(4097))
    (tmp_path / "rules.toml").write_text(f"[[rule]]\ncomm = [{names}]\n")
    commands.ok("rules", "reload")
    found = daemon.client.policy_map()
    assert "4097 entries, and there is room for 4096" in found.trouble
    assert [entry.comm for entry in found.entries] == [""]


def test_a_killed_loader_leaves_the_policy_to_the_next(ruled: Callable[[str], Daemon]) -> None:
    daemon = ruled('[[rule]]\ncomm = "one"\nrefuse = { slices = true }\n')
    daemon.faults = ("its loader ended",)
    os.kill(loader_of(daemon), signal.SIGKILL)
    wait_for(lambda: daemon.client.policy_map().enforced.startswith("nobody: its loader ended"))
    wait_for(lambda: not daemon.client.policy_map().enforced.startswith("nobody"))
    assert [entry.comm for entry in daemon.client.policy_map().entries] == ["one"]


@pytest.fixture
def names_for_maps() -> Iterator[None]:
    """A file system for names of maps, where this machine has none mounted."""
    bpf = Path("/sys/fs/bpf")
    mounted = any(line.split()[4] == str(bpf) for line in Path("/proc/self/mountinfo").read_text().splitlines())
    if not mounted:
        subprocess.run(["mount", "-t", "bpf", "bpf", bpf], check=True)
    yield
    if not mounted:
        subprocess.run(["umount", "-l", bpf], check=True)


def test_a_daemon_that_starts_again_goes_on_with_the_maps(
    names_for_maps: None, ruled: Callable[[str], Daemon], worker: Start, slices: Slices
) -> None:
    """Killed with its keeper, which leaves nobody who knows: the next one finds its tenants by the maps alone."""
    rules = '[[rule]]\nuser = 0\nset = { class = "batch" }\n'
    first = ruled(rules)
    tenants = [worker(), worker()]
    for tenant in tenants:
        wait_for(lambda tenant=tenant: [task.channels for task in managed(first, tenant.pid)] == [20])
    first.faults = second_faults = ("keeper",)  # it may see that before it is killed itself
    os.kill(first.keeper, signal.SIGKILL)
    first.kill()
    second = ruled(rules)
    second.faults = second_faults
    wait_for(lambda: "rebuilt from the kernel's maps" in second.log.read_text())
    said = next(line for line in second.log.read_text().splitlines() if "rebuilt" in line)
    assert ("processes=2" in said, "walks=0" in said) == (True, True), said
    for tenant in tenants:
        (task,) = managed(second, tenant.pid)
        assert (task.task_class, task.rule, task.groups, task.channels) == ("batch", "rules.toml:1", 4, 20)
        wait_for(lambda tenant=tenant: slices.of(tenant.pid)[0] == managed(second, tenant.pid)[0].timeslice_us)
    wait_for(lambda: not Path(f"/sys/fs/bpf/runlist/{first.pid}").exists())
    assert Path(f"/sys/fs/bpf/runlist/{second.pid}/groups").exists()
    second.client.stop()
    assert second.process.wait(60) == 0
    assert not Path(f"/sys/fs/bpf/runlist/{second.pid}").exists()

"""Tenants in containers, beside a daemon that is in one: it may look into nobody, and goes by what they lend."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import runlist
from runlist.planes.nvidia.rm.transport import choose_driver
from tests.conftest import ON_NVIDIA
from tests.fixtures.containers import Container, container, deny, first_process, lend, need_containers, record
from tests.fixtures.daemon import NOBODY, ROOT, Commands, Daemon, Slices, needs_others, needs_root, task_of, wait_for
from tests.fixtures.holder import OUT_OF_MEMORY, Holder
from tests.native.guests import Guests, open_folder

GiB = 1 << 30
STAYS = ("sh", "-c", '"$@"; read _', "sh")
"""Words that keep a process above the one that they run when that has ended."""

WAITS = ("sh", "-c", 'read _; exec "$@"', "sh")
"""Words that run a command once they read a line."""

pytestmark = needs_root


class Place(NamedTuple):
    """A daemon that is denied to look into any process, and what runs beside it."""

    commands: Commands
    daemon: Daemon

    @property
    def folder(self) -> Path:
        return self.commands.folder

    @property
    def gpu(self) -> Path:
        return Path(self.commands.environment.get("RUNLIST_EMULATED_GPU", "/dev"))

    def container(self, owner: int = 0, preload: Path | None = None) -> list[str]:
        """Words that run a program of a user in a container. It has the GPU, the socket for messages, and a volume."""
        new = Path(tempfile.mkdtemp(dir=self.folder))
        os.chown(new, owner, owner)
        return container(new, self.gpu, self.folder / "messages.sock", self.volume, preload=preload)

    @property
    def volume(self) -> Path:
        return self.folder / "volume"

    def environment(self, **more: str) -> dict[str, str]:
        """A tenant's that nobody starts by `runlist run`."""
        beside = {"RUNLIST_MESSAGES": str(self.folder / "messages.sock"), "RUNLIST_STRICT": "1"}
        return {**self.commands.environment, **beside, **more}

    def descriptors(self) -> list[str]:
        """What the daemon has open."""
        opened = []
        for fd in Path(f"/proc/{self.daemon.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                opened.append(os.readlink(fd))
        return opened


@pytest.fixture(scope="module")
def place(device_env: dict[str, str]) -> Iterator[Place]:
    folder = open_folder()  # so that the daemon hears every user
    need_containers(Path(tempfile.mkdtemp(dir=folder)))
    commands = Commands(device_env, folder)
    (folder / "volume").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in commands.environment.items():
            patch.setenv(name, value)
        commands.options = {"preexec_fn": deny(errno.EPERM)}
        with Daemon(commands) as daemon:
            commands.options = {}
            yield Place(commands, daemon)
    commands.close()


def test_a_container_is_managed_by_what_its_programs_lend(place: Place) -> None:
    """What it held of its tree's limit when it was killed, a process elsewhere can have, which sees but its lock."""
    client, region = place.daemon.client, str(place.volume / "region")
    limit = 3 if ON_NVIDIA else 2  # in GiB: each of two contexts has half of one there
    variables = place.environment(RUNLIST_MEMORY=f"{limit}G", CUDA_DEVICE_MEMORY_SHARED_CACHE=region)
    with (
        Container([*STAYS, *place.container(preload=runlist.library())], variables) as inside,
        Holder([], {**variables, "LD_PRELOAD": str(runlist.library())}) as outside,
    ):
        client.attach(inside.process.pid, "batch", wait=True)
        assert [inside.do("open"), inside.do("take 1500"), outside.do("open")] == [0, 0, 0]
        assert [inside.do("take 600"), outside.do("take 600")] == [OUT_OF_MEMORY, OUT_OF_MEMORY]
        wait_for(client.ps, "the container to be managed")
        task = task_of(place.daemon, inside.pid)
        assert (task.reached_by, task.groups, task.why) == ("lent", 4, "")
        assert (task.memory_limit_bytes, task.enforcement) == (limit * GiB, "memory, queries")
        assert "lent" in place.commands.ok("ps", "--long")
        assert [task.suspended for task in client.suspend(inside.pid) + client.resume(inside.pid)] == [True, False]
        client.set(inside.process.pid, {"memory": f"{limit + 1}G"})
        assert [outside.do("take 600"), outside.do("take 1200")] == [0, OUT_OF_MEMORY]
        os.kill(inside.pid, signal.SIGKILL)
        wait_for(lambda: not client.ps(), "the container to be forgotten")
        wait_for(lambda: outside.do("take 1200") == 0, "what the container held")
    wait_for(lambda: region not in place.descriptors(), "the daemon to close the region")


def test_one_that_begins_while_the_socket_is_full_is_managed_once_it_does_more(place: Place) -> None:
    """It told of itself but once, and had waited for 0.25 s."""
    client, variables = place.daemon.client, place.environment(LD_PRELOAD=str(runlist.library()))
    with Holder([], variables) as tenant, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as flood:
        client.attach(tenant.pid, "batch", wait=True)
        os.kill(place.daemon.pid, signal.SIGSTOP)
        try:
            flood.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    flood.sendto(b"a flood", str(place.folder / "messages.sock"))
            assert tenant.do("open") == 0
        finally:
            os.kill(place.daemon.pid, signal.SIGCONT)
        assert client.ps() == []  # it hears again
        wait_for(lambda: tenant.do("take 1") == 0 and client.ps(), "the tenant to be managed")
        assert task_of(place.daemon, tenant.pid).reached_by == "lent"
    wait_for(lambda: not client.ps(), "the tenant to be forgotten")


@needs_others
@pytest.mark.skipif(ON_NVIDIA, reason="opens up the emulated GPU's folder")
def test_a_container_of_another_user(place: Place) -> None:
    """Root in it is nobody here, as where containers are rootless."""
    guests = Guests(place.volume, place.commands.environment)
    variables = {**guests.environment(preload=str(guests.library)), **place.environment(RUNLIST_MEMORY="2G")}
    words = [*WAITS, str(guests.path("racer")), "count", str(GiB), "1"]
    user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/"}
    with contextlib.ExitStack() as undo:
        for path in (place.gpu.parent, place.gpu, place.gpu / "nvidiactl"):
            undo.callback(path.chmod, path.stat().st_mode & 0o7777)
            path.chmod(0o777)
        tenant = undo.enter_context(started([*place.container(owner=NOBODY), *words], variables, **user))
        pid = first_process(tenant.pid)
        place.daemon.client.attach(pid, None, wait=True)
        say(tenant)
        assert hear(tenant) == "ready\n"
        wait_for(place.daemon.client.ps, "the container to be managed")
        task = task_of(place.daemon, pid)
        assert (task.reached_by, task.user, task.memory_limit_bytes) == ("lent", NOBODY, 2 * GiB)
        refuses_what_root_lends_for(place, pid)
        assert tenant.communicate(timeout=60)[0] == "1\n"
    wait_for(lambda: not place.daemon.client.ps(), "the container to be forgotten")


def test_all_in_one_container_that_knows_no_such_calls(commands: Commands, start_daemon: Callable[..., Daemon]) -> None:
    """Daemon, launcher and tenant, as under gVisor."""
    commands.options = {"preexec_fn": deny(errno.ENOSYS)}
    daemon = start_daemon()
    run = [sys.executable, "-m", "runlist.cli", "run", "--cap", "30", "--"]
    with (
        Holder(run, commands.environment, **commands.options) as tenant,
        Holder([], commands.environment, **commands.options) as other,
    ):
        assert [tenant.do("open"), other.do("open")] == [0, 0]
        wait_for(daemon.client.ps, "the tenant to be managed")
        task = task_of(daemon, tenant.pid)
        assert (task.reached_by, task.cap_by) == ("lent", "driver")
        assert daemon.client.suspend(tenant.pid)[0].suspended
        refusal = commands.fails(3, "attach", str(other.pid))
        assert refusal.startswith(f"no right to borrow from process {other.pid} (Function not implemented)")
    findings = {finding["what"]: finding for finding in commands.json("doctor")["findings"]}
    assert [findings[what]["state"] for what in ("borrowing", "lending")] == ["warn", "ok"]
    assert "`runlist run` goes by what programs lend instead" in findings["borrowing"]["detail"]


def refuses_what_root_lends_for(place: Place, pid: int) -> None:
    """A process is managed for its own user, and what another says there is not kept, even root."""
    before = len(place.descriptors())
    with contextlib.closing(choose_driver().open()) as file:
        path = place.environment()["RUNLIST_MESSAGES"]
        assert all(lend(path, record(client), file.fileno(), sender=(pid, 0, 0)) for client in range(10))
        place.daemon.client.status()  # it has heard them
        # Two are those of the helper that drops what nobody wants, if there was none yet.
        wait_for(lambda: len(place.descriptors()) <= before + 2, "the daemon to close what was sent")


def test_a_hostile_container_harms_nobody(place: Place) -> None:
    client, slices = place.daemon.client, Slices()
    variables = place.environment(LD_PRELOAD=str(runlist.library()))
    with Holder([], variables) as victim, contextlib.closing(slices):
        client.attach(victim.pid, "normal", wait=True)
        assert victim.do("open") == 0
        wait_for(client.ps, "the victim to be managed")
        client.set(victim.pid, {"timeslice": "7000"})
        before = len(place.descriptors())
        with Holder([], variables) as late, hostile(place, victim.pid, slices) as program:
            client.attach(late.pid, "normal", wait=True)
            say(program)
            assert late.do("open") == 0
            assert hear(program) == "done\n"
            wait_for(lambda: len(client.ps()) > 1, "the late one to be managed")
            assert {task.pid: task.reached_by for task in client.ps()} == {victim.pid: "lent", late.pid: "lent"}
            assert set(slices.of(victim.pid)) == {7000}
            assert task_of(place.daemon, victim.pid).corrections == 0
        wait_for(lambda: len(place.descriptors()) <= before, "the daemon to close what was sent")
    wait_for(lambda: not client.ps(), "all to be forgotten")
    assert "Traceback" not in place.daemon.log.read_text()


@contextlib.contextmanager
def hostile(place: Place, victim: int, slices: Slices) -> Iterator[subprocess.Popen[str]]:
    """A hostile program in a container that is managed. A line starts it, and somebody gave it a victim's file."""
    (context,) = slices.contexts(victim)
    path = place.volume / "accomplice"
    with socket.socket(socket.AF_UNIX) as listener, contextlib.closing(context.handle):
        listener.bind(str(path))
        listener.listen()
        module = [sys.executable, "-m", "tests.fixtures.containers"]
        words = [*place.container(), *module, str(victim), str(context.client), str(path)]
        with started(words, place.environment(), cwd=ROOT) as program:
            place.daemon.client.attach(first_process(program.pid), "latency", wait=True)
            assert hear(program) == "ready\n"
            say(program)
            with listener.accept()[0] as accomplice:
                socket.send_fds(accomplice, [b"."], [context.handle.fileno()])
            yield program


@contextlib.contextmanager
def started(words: list[str], environment: dict[str, str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A program that is spoken with; it is killed in the end."""
    process = subprocess.Popen(
        words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, **options
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def say(process: subprocess.Popen[str]) -> None:
    """Let it go on."""
    assert process.stdin is not None
    process.stdin.write("\n")


def hear(process: subprocess.Popen[str]) -> str:
    """The next line that it says."""
    assert process.stdout is not None
    return process.stdout.readline()

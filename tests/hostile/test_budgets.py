"""One user who makes Runlist work hard: the others notice nothing."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runlist.client import Client
from runlist.daemon.tree.processes import MAX_TREES
from runlist.errors import RunlistError
from runlist.planes.process import region
from runlist.planes.process.region.format import DEVICES, HEADER, SLOT, SLOTS, SLOTS_AT, USE
from runlist.proc.process import pid_namespace
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import NOBODY, As, Commands, Daemon, Worker, group_of_nobody, needs_root, wait_for

pytestmark = [needs_root, pytest.mark.skipif(ON_NVIDIA, reason="its control files are the emulated GPU's")]

Start = Callable[..., Worker]

_MANY_FILES = """
import os, socket, sys
path, count, user = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
kept = []
for _ in range(count):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.connect(path)
    kept.append(one)
os.setresgid(user, user, user)
os.setresuid(user, user, user)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def shared_daemon(start_daemon: Callable[..., Daemon]) -> Daemon:
    """Root's daemon, with a socket that nobody's group may use."""
    return start_daemon("--group", group_of_nobody())


@pytest.fixture
def crowd(commands: Commands) -> Iterator[Callable[[int, int], list[int]]]:
    """Starts processes of nobody, with so many control files each; their process ids."""
    started: list[subprocess.Popen[str]] = []

    def start(processes: int, files: int) -> list[int]:
        path = Path(commands.environment["RUNLIST_EMULATED_GPU"]) / "nvidiactl"
        words = [sys.executable, "-c", _MANY_FILES, str(path), str(files), str(NOBODY)]
        mine = [
            subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
        ]
        started.extend(mine)
        for process in mine:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        return [process.pid for process in mine]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def as_nobody_in_the_background(requests: list[Callable[[Client], object]]) -> list[threading.Thread]:
    """Each request of nobody on a connection of its own, whatever comes of it."""

    def ask(request: Callable[[Client], object]) -> None:
        def child() -> None:
            with contextlib.suppress(RunlistError), Client.open() as client:
                request(client)

        with contextlib.suppress(Exception):
            As(NOBODY)(child)

    threads = [threading.Thread(target=ask, args=(request,), daemon=True) for request in requests]
    for thread in threads:
        thread.start()
    return threads


def test_many_control_files_hold_up_nobody_else(
    shared_daemon: Daemon, crowd: Callable[[int, int], list[int]], worker: Start
) -> None:
    pids = crowd(7, 150)
    first, *victims = [worker() for _ in range(4)]
    started = time.monotonic()
    shared_daemon.client.attach(first.pid, "batch")
    alone = time.monotonic() - started  # on a machine that has other things to do, much more than elsewhere
    as_nobody_in_the_background([lambda client, pid=pid: client.attach(pid, "batch", wait=True) for pid in pids])
    time.sleep(1)
    took = []
    for victim in victims:
        started = time.monotonic()
        assert shared_daemon.client.attach(victim.pid, "batch")
        took.append(time.monotonic() - started)
        victim.wait_for_progress()
    asked = []
    for _ in range(50):
        started = time.monotonic()
        shared_daemon.client.status()
        asked.append(time.monotonic() - started)
        time.sleep(0.01)
    print("attach", alone, took, "status", sorted(asked)[-3:])
    assert max(took) < 5 + 20 * alone


def test_the_trees_of_a_user_are_limited(shared_daemon: Daemon, worker: Start) -> None:
    sleepers = [subprocess.Popen(["sleep", "1000"], user=NOBODY) for _ in range(MAX_TREES + 1)]

    def attach_all() -> str:
        with Client.open() as client:
            for sleeper in sleepers:
                try:
                    client.attach(sleeper.pid, "batch", wait=True)
                except RunlistError as error:
                    return f"{sleepers.index(sleeper)}: {error}"
        return ""

    try:
        assert As(NOBODY)(attach_all).startswith(f"{MAX_TREES}: {MAX_TREES} commands and attached processes of yours")
        assert shared_daemon.client.attach(worker().pid, "batch")  # others are not concerned
        sleepers[0].kill()
        sleepers.pop(0).wait()
        assert As(NOBODY)(lambda: [client.attach(sleepers[-1].pid, "batch", wait=True) for client in [Client.open()]])
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def crowded(folder: Path) -> tuple[Path, region.Region]:
    """A region with all slots taken, by processes that are there."""
    path, opened = region.create(folder, strict=False)
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    use = [1] * len(USE.names) * DEVICES
    for index in range(SLOTS):
        fields = {"identity": pids[index % len(pids)] | 1 << 32, "pid_namespace": pid_namespace(), "use": use}
        os.pwrite(opened.fileno(), SLOT.pack(start_time=0, enforced=3, **fields), SLOTS_AT + index * SLOT.size)
    os.pwrite(opened.fileno(), SLOTS.to_bytes(4, "little"), HEADER.offsets["slots_used"])
    return path, opened


def test_launches_with_full_regions_hold_up_nobody_else(
    shared_daemon: Daemon, tmp_path: Path, worker: Start, short_path: Path
) -> None:
    made = [crowded(tmp_path) for _ in range(20)]
    for path, opened in made:
        os.chown(path, NOBODY, NOBODY)
        os.set_inheritable(opened.fileno(), True)
    ready = short_path / "ready"
    ready.mkdir(mode=0o777)
    ready.chmod(0o777)

    def asking() -> float:
        """How long it takes, in seconds."""
        before = time.monotonic()
        shared_daemon.client.ps()
        return time.monotonic() - before

    alone = sum(asking() for _ in range(10)) / 10

    def launch(number: int, fd: int) -> None:
        with Client.open() as client:
            client.launch(os.getpid(), "batch", {"memory": "1G"}, fd)
            (ready / str(number)).touch()
            time.sleep(100)

    launchers = []
    for number, (_, opened) in enumerate(made):
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
                launch(number, opened.fileno())
            os._exit(0)
        launchers.append(pid)
    try:
        wait_for(lambda: len(os.listdir(ready)) == len(made), "the launches")
        started = time.monotonic()
        assert shared_daemon.client.attach(worker().pid, "batch")
        asked = [asking()]
        while time.monotonic() - started < 3:
            asked.append(asking())
        assert sum(asked) / len(asked) < 0.25 + 20 * alone
    finally:
        for pid in launchers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


_MAKE_CONTEXT = """
import ctypes, time
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
"""

_GROW_COMMAND_LINE = """
import struct
libc, size = ctypes.CDLL(None), 256 << 20
libc.mmap.restype = libc.sbrk.restype = ctypes.c_void_p
area = libc.mmap(None, ctypes.c_size_t(size), 3, 0x22, -1, ctypes.c_long(0))
ctypes.memset(area, 120, size - 1)
stat = [0, 0, 0, *open("/proc/self/stat").read().rpartition(")")[2].split()]
code, end, stack, data, data_end, brk, env, env_end = (int(stat[at]) for at in (26, 27, 28, 45, 46, 47, 50, 51))
fields = (code, end, data, data_end, brk, libc.sbrk(0), stack, area, area + size, env, env_end, 0, 0, -1)
assert libc.prctl(35, 14, struct.pack("11QQIi", *fields), ctypes.c_ulong(struct.calcsize("11QQIi")), 0) == 0
"""
"""PR_SET_MM_MAP, which needs no privilege: the words are somewhere else now, and many."""


def test_a_command_line_of_256_mib_is_read_as_far_as_it_is_shown(daemon: Daemon, commands: Commands) -> None:
    code = f"{_MAKE_CONTEXT}{_GROW_COMMAND_LINE}print('ready', flush=True); time.sleep(99)"
    with subprocess.Popen([sys.executable, "-c", code], env=commands.environment, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            with open(f"/proc/{process.pid}/cmdline", "rb") as line:
                assert sum(map(len, iter(line.read1, b""))) == 256 << 20
            (task,) = daemon.client.attach(process.pid, "batch")
            assert len(task.command_line) == 32 << 10
            assert resident(daemon.pid) < 200 << 20
        finally:
            process.kill()


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_a_program_that_is_a_pipe_now_holds_up_nobody(
    shared_daemon: Daemon, commands: Commands, tmp_path: Path
) -> None:
    """Why the library is not in a process is looked up by the path of its program, which its user has in hand."""
    program = tmp_path / "python"
    shutil.copy(Path(sys.executable).resolve(), program)
    os.mkfifo(f"{program} (deleted)", 0o755)
    # The library is named, so that the program is looked at, and is not there.
    hidden = (
        "import os; os.environ['LD_PRELOAD'] = '/none/librunlist.so'; "
        f"os.execv({str(program)!r}, ['python', '-c', {_MAKE_CONTEXT + 'time.sleep(99)'!r}])"
    )
    environment = {**commands.environment, "PYTHONHOME": sys.base_prefix}
    words = ["run", "--memory", "1G", "--no-strict", "--", sys.executable, "-c", hidden]
    commands.start(*words, env=environment)
    wait_for(shared_daemon.client.ps, "the task")
    program.unlink()
    for _ in range(3):
        started = time.monotonic()
        (task,) = shared_daemon.client.ps()
        assert time.monotonic() - started < 20
        assert task.enforcement.startswith("not loaded: ")


def test_everything_is_not_attached_by_its_first_process(daemon: Daemon, commands: Commands) -> None:
    for words in (["attach", "1"], ["attach", "1", "--wait"]):
        assert "attach those that have one" in commands.fails(4, *words)
    assert not daemon.client.ps()

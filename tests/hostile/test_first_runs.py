"""Many who want a daemon at the same time, also while one ends, and folders that take nothing."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import random
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from runlist import paths, trusted
from runlist.cli import main
from runlist.client import Client
from runlist.errors import RunlistError
from runlist.starting import Turn, _opened_log
from tests.fixtures.daemon import NOBODY, As, Commands, Daemon, group_of_nobody, needs_root, running, wait_for
from tests.fixtures.effort import TIMES


def _daemons(folder: Path) -> list[int]:
    """Daemons whose log is in this folder."""
    log = os.stat(folder / "daemon.log")
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            theirs = os.stat(f"/proc/{pid}/fd/2")
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if (theirs.st_dev, theirs.st_ino) == (log.st_dev, log.st_ino) and b"--private" in words:
            found.append(pid)
    return found


def _together(count: int, ask: Callable[[], object]) -> list[int]:
    """Wait statuses of so many children of fork that do the same at the same time."""
    reader, writer = os.pipe()
    children = []
    for _ in range(count):
        if (pid := os.fork()) == 0:
            os.close(writer)
            os.read(reader, 1)  # until the pipe is closed
            try:
                ask()
            except BaseException as error:
                os.write(2, f"{error!r}\n".encode())
                os._exit(1)
            os._exit(0)
        children.append(pid)
    os.close(reader)
    os.close(writer)
    return [os.waitpid(pid, 0)[1] for pid in children]


def _ask() -> None:
    with Client.open(start=True) as client:
        client.ps()
        time.sleep(0.2)
        client.ps()


def test_twelve_first_runs_share_one_daemon(commands: Commands) -> None:
    for _ in range(2 * TIMES):
        assert _together(12, _ask) == [0] * 12
        assert len(_daemons(commands.folder)) == 1
        commands.ok("daemon", "--stop")


def test_first_runs_by_the_command(commands: Commands) -> None:
    first = [commands.start("run", "--", "true") for _ in range(12 if TIMES > 1 else 3)]
    for process in first:
        _, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
        assert all("waits for room" in line for line in err.splitlines()), err  # on a machine that is very busy
    assert len(_daemons(commands.folder)) == 1
    commands.ok("daemon", "--stop")


def test_a_daemon_that_is_wanted_as_it_ends(commands: Commands) -> None:
    """Whoever asks for a daemon has one that stays, whatever the one before is doing."""
    failed: list[str] = []

    def ask(pause_s: float) -> None:
        time.sleep(pause_s)
        try:
            with Client.open(start=True) as client:
                client.ps()
        except RunlistError as error:
            failed.append(str(error))

    for _ in range(2 * TIMES):
        commands.ok("--private", "0.2", module="runlist.daemon")  # becomes nobody's child
        askers = [threading.Thread(target=ask, args=(random.uniform(0, 2),)) for _ in range(4)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        assert not failed
    commands.run("daemon", "--stop")


def test_a_start_that_stands_still_keeps_nobody_for_long(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runlist.client._TURN_S", 0.2)
    with commands.socket.with_suffix(".start").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with Client.open(start=True) as client:
            client.stop()


def test_a_private_daemon_stays_for_who_is_connected(commands: Commands) -> None:
    commands.start("--private", "0.2", module="runlist.daemon")
    wait_for(commands.served)
    with Client.open(start=True) as client:
        pid = client.status().pid
        time.sleep(1.5)
        assert client.status().pid == pid
    wait_for(lambda: not running(pid))


# -- disks that take nothing -----------------------------------------------------------------------

_ON_A_SMALL_DISK = """
mount -t tmpfs -o mode=700,size=$SIZE none "$FOLDER" || exit 99
{ cat /dev/zero > "$FOLDER/fill"; } 2>/dev/null
[ -z "$THEN" ] || mount -o "$THEN" "$FOLDER" || exit 99
"$@"
code=$?
"$PYTHON" -m runlist.cli daemon --stop 2>/dev/null
exit $code
"""
"""The commands' folder is a small disk that is full, in a mount namespace of its own."""


def _on_a_small_disk(commands: Commands, *words: str, size: str = "4k", then: str = "") -> tuple[int, str, str]:
    environment = {
        **commands.environment, "FOLDER": str(commands.folder), "SIZE": size, "THEN": then, "PYTHON": sys.executable,
    }  # fmt: skip
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", _ON_A_SMALL_DISK, "sh", sys.executable, "-m", "runlist.cli", *words],
        env=environment, capture_output=True, text=True, timeout=100, cwd="/",
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@needs_root
@pytest.mark.parametrize("size", ["4k", "8k,nr_inodes=9"])
def test_a_run_without_a_limit_goes_on_on_a_full_disk(commands: Commands, size: str) -> None:
    code, out, err = _on_a_small_disk(commands, "run", "--class", "batch", "--", "echo", "started", size=size)
    assert (code, out) == (0, "started\n"), err
    (line,) = err.splitlines()
    assert line.endswith("; going on without")


@needs_root
def test_a_run_with_a_limit_is_refused_on_a_full_disk(commands: Commands) -> None:
    code, out, err = _on_a_small_disk(commands, "run", "--memory", "1G", "--", "echo", "started")
    assert (code, out) == (1, ""), err
    (line,) = err.splitlines()
    assert "there is no room for it" in line


@needs_root
@pytest.mark.parametrize(
    ("size", "then"), [("4k", "remount,ro"), *((f"64k,nr_inodes={files}", "") for files in range(1, 9))]
)
def test_a_disk_without_room_for_a_daemon_is_one_line(commands: Commands, size: str, then: str) -> None:
    code, out, err = _on_a_small_disk(commands, "run", "--", "echo", "started", size=size, then=then)
    assert (code > 0, out) == (True, ""), err
    (line,) = err.splitlines()
    assert str(commands.folder) in line


@needs_root
@pytest.mark.parametrize("mask", [0o177, 0o777])
def test_what_is_made_is_of_use_whatever_the_umask(short_path: Path, mask: int) -> None:
    """A folder that its owner may not enter would be in the way of all later runs."""
    os.chown(short_path, NOBODY, NOBODY)
    folder = short_path / "made" / "below"

    def use() -> int:
        os.umask(mask)
        paths.make_private(folder)
        with Turn(folder / "start") as turn:
            assert turn.ours()
        for name in ("start", "other"):
            os.close(trusted.make_file(folder / name))
            os.close(os.open(folder / name, os.O_RDWR))
        _opened_log(folder / "log").close()
        _opened_log(folder / "log").close()
        return os.umask(0)

    assert As(NOBODY)(use) == mask
    assert folder.parent.stat().st_mode & 0o777 == 0o700


def test_a_daemon_that_is_started_with_nothing(start_daemon: Callable[..., Daemon], commands: Commands) -> None:
    """What it writes to no stream would come to somebody whose socket has that number, such as its keeper's."""

    def bare() -> None:
        os.umask(0o777)
        os.closerange(0, 3)

    commands.options = {"preexec_fn": bare}
    daemon = start_daemon()
    streams = [os.readlink(f"/proc/{daemon.pid}/fd/{fd}") for fd in range(3)]
    assert [*streams, os.readlink(f"/proc/{daemon.keeper}/fd/2")] == 4 * ["/dev/null"]
    made = [path.stat().st_mode & 0o777 for path in commands.folder.glob("daemon.[cl]*")]
    assert made == 2 * [0o600], "the next daemon can read them"


@needs_root
def test_without_room_for_processes_and_threads_a_run_says_so_in_a_line(start_daemon: Callable[..., Daemon]) -> None:
    """A command that was started goes on."""
    start_daemon("--group", group_of_nobody())

    def run(room: int) -> tuple[int, str]:
        resource.setrlimit(resource.RLIMIT_NPROC, (room, room))
        with contextlib.redirect_stderr(io.StringIO()) as said, pytest.raises(SystemExit) as ended:
            main(["run", "--class", "batch", "--", "true"])
        return int(str(ended.value.code)), said.getvalue()

    codes = []
    for room in range(1, 7):
        code, said = As(54321, NOBODY)(partial(run, room))
        assert all(line.startswith("runlist: ") for line in said.splitlines())
        assert code == 0 or len(said.splitlines()) == 1, said
        codes.append(code)
    assert codes[-1] == 0

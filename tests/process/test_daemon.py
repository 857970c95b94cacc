"""The daemon as a process: one per socket, and what keeps it from starting."""

from __future__ import annotations

import os
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from runlist.client import Client
from runlist.errors import NoTargetError
from tests.fixtures.daemon import Commands, Daemon, group_of_nobody, needs_root, running, wait_for


def refused(commands: Commands, code: int, *words: str) -> str:
    """What a daemon that does not start says last, on standard error and to whoever waits for it."""
    reader, writer = os.pipe()
    done = commands.run("--ready-fd", str(writer), *words, module="runlist.daemon", pass_fds=[writer])
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        line = pipe.read()
    assert done.returncode == code, done
    assert line.startswith(f"{code} ")
    assert line.count("\n") == 1
    assert line.removeprefix(f"{code} ").strip() in done.stderr
    return line


def test_the_socket_is_for_its_owner_alone(daemon: Daemon, commands: Commands) -> None:
    found = commands.socket.stat()
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert stat.S_IMODE(commands.socket.with_suffix(".lock").stat().st_mode) == 0o600
    assert stat.S_IMODE(commands.folder.stat().st_mode) == 0o700


@needs_root
def test_the_socket_is_for_a_group_where_that_is_asked(commands: Commands, start_daemon: Callable[..., Daemon]) -> None:
    start_daemon("--group", group_of_nobody())
    found = commands.socket.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o660, 65534)
    assert stat.S_IMODE(commands.folder.stat().st_mode) == 0o711  # a group that cannot reach it would be no use


def test_a_second_daemon_is_refused_and_the_first_goes_on(daemon: Daemon, commands: Commands) -> None:
    line = refused(commands, 1)
    assert f"a daemon runs already (process {daemon.pid}" in line
    assert commands.run("daemon").returncode == 1
    assert daemon.client.status().pid == daemon.pid
    with Client.open() as client:
        assert client.status().pid == daemon.pid


def test_a_stale_socket_is_replaced(commands: Commands, start_daemon: Callable[..., Daemon]) -> None:
    first = start_daemon()
    first.kill()
    assert commands.socket.exists()
    with pytest.raises(NoTargetError, match="no daemon runs"):
        Client.open()
    second = start_daemon()
    assert second.client.status().pid == second.pid


def test_a_stale_lock_of_any_content_is_no_obstacle(commands: Commands, start_daemon: Callable[..., Daemon]) -> None:
    commands.socket.with_suffix(".lock").write_bytes(b"\xff\xfe not a pid" * 10)
    assert start_daemon().client.status()


def test_a_file_in_the_sockets_place_is_left_alone(commands: Commands) -> None:
    commands.socket.write_text("precious")
    assert "is not a socket" in refused(commands, 2)
    assert commands.socket.read_text() == "precious"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--policy", "best"], "no policy 'best'"),
        (["--policy", "none.py"], "does not exist"),
        (["--option", "quantum_ms=0"], "not within"),
        (["--option", "quantum_ms"], "write NAME=VALUE"),
        (["--group", "no-such-group"], "no group 'no-such-group'"),
    ],
)
def test_a_bad_start_is_usage_and_leaves_nothing(commands: Commands, words: list[str], what: str) -> None:
    assert what in refused(commands, 2, *words)
    with pytest.raises(NoTargetError):
        Client.open()


def test_a_folder_that_others_can_write_is_no_permission(commands: Commands) -> None:
    commands.folder.chmod(0o777)
    assert "others can write there" in refused(commands, 3)


def test_a_path_too_long_is_one_line(commands: Commands) -> None:
    deep = commands.folder / ("x" * 120)
    commands.environment["RUNLIST_SOCKET"] = str(deep / "daemon.sock")
    assert "too long" in refused(commands, 1)


def test_a_folder_that_takes_no_file_is_one_line(commands: Commands) -> None:
    commands.environment["RUNLIST_SOCKET"] = "/proc/daemon.sock"
    line = commands.fails(1 if os.geteuid() == 0 else 3, "run", "--", "true")
    assert "/proc" in line


@pytest.mark.parametrize("group", ["\udcff", "x" * 40_000])
def test_what_no_daemon_would_take_is_one_line(commands: Commands, group: str) -> None:
    line = commands.fails(2, "run", "--group", group, "--", "true")
    assert line.startswith("group=")
    assert line.endswith(": take a name of 1 to 1024 characters, no spaces, or none")
    with pytest.raises(NoTargetError):  # nothing is started for it
        Client.open()


def test_without_a_device_it_does_not_start(commands: Commands) -> None:
    commands.environment.update({"RUNLIST_DEVICE": "emulated", "RUNLIST_EMULATED_GPU": str(commands.folder / "none")})
    assert "no emulated GPU runs in" in refused(commands, 5)
    assert not (commands.folder / "none").exists()  # nothing is made before that is known
    assert not commands.socket.with_suffix(".lock").exists()


def test_several_clients_that_start_a_private_daemon_at_once_share_one(commands: Commands) -> None:
    processes = [commands.start("run", "--", "true") for _ in range(4)]
    assert [(process.communicate(timeout=60)[1], process.returncode) for process in processes] == [("", 0)] * 4
    with Client.open() as client:
        status = client.status()
        assert status.private
        client.stop()
    wait_for(lambda: not running(status.pid))


def test_a_private_daemon_loads_nothing_that_is_for_the_command(commands: Commands) -> None:
    """It serves others as well, later. By faketime's clock, which may stand still, nobody would have a turn."""
    env = {**commands.environment, "LD_PRELOAD": "libm.so.6", "LD_AUDIT": ""}
    said = commands.ok("run", "--", "sh", "-c", "echo $LD_PRELOAD", env=env)
    assert said.endswith(":libm.so.6\n")
    with Client.open() as client:
        status = client.status()
        assert status.private
        variables = Path(f"/proc/{status.pid}/environ").read_bytes().split(b"\0")
        assert [one for one in variables if one.startswith((b"LD_PRELOAD=", b"LD_AUDIT="))] == []


def test_a_private_daemon_tells_the_commands_service_manager_nothing(commands: Commands) -> None:
    """Else a service would count as started, and as stopping, when a daemon is that serves others as well."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(commands.folder / "notify"))
        manager.setblocking(False)
        env = {**commands.environment, "NOTIFY_SOCKET": manager.getsockname()}
        assert commands.ok("run", "--", "sh", "-c", "echo $NOTIFY_SOCKET", env=env) == f"{manager.getsockname()}\n"
        commands.ok("daemon", "--stop")
        with pytest.raises(BlockingIOError):
            manager.recv(100)


def test_a_private_daemon_outlives_the_terminal_of_whoever_started_it(commands: Commands) -> None:
    assert commands.ok("run", "--", "true") == ""
    with Client.open() as client:
        pid = client.status().pid
        assert os.getsid(pid) not in (os.getsid(0), 0)
        os.kill(pid, signal.SIGHUP)
        assert client.status().pid == pid
        client.stop()


def test_a_private_daemon_takes_signals_whatever_its_first_client_ignores_and_blocks(commands: Commands) -> None:
    """Programs that wait for signals by `sigwait` or `signalfd` block all, and many start others so."""

    def deaf() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    assert commands.ok("run", "--", "true", preexec_fn=deaf) == ""
    with Client.open() as client:
        pid = client.status().pid
    said = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    assert int(said["SigBlk"], 16) == 0
    assert int(said["SigIgn"], 16) & 1 << signal.SIGCHLD - 1 == 0
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not running(pid))


def test_its_log_is_beside_the_socket(commands: Commands) -> None:
    commands.ok("run", "--", "true")
    assert "ready" in (commands.folder / "daemon.log").read_text()
    commands.ok("daemon", "--stop")


def test_a_log_that_became_long_is_begun_anew(commands: Commands) -> None:
    """Each daemon went on with it, in a folder that is memory as a rule."""
    log, last = commands.folder / "daemon.log", commands.folder / "daemon.log.1"
    for size, moved in ((1 << 20, False), (5 << 20, True), (5 << 20, True)):
        log.write_bytes(bytes(size))
        commands.ok("run", "--", "true")
        commands.ok("daemon", "--stop")
        assert (log.stat().st_size < 1 << 20, last.exists()) == (moved, moved)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_in_the_foreground_is_ended_by_a_signal(commands: Commands, number: signal.Signals) -> None:
    process = commands.start("daemon", "--policy", "gpreempt")
    wait_for(commands.served)
    wait_for(lambda: _answers(commands.socket))
    assert commands.json("daemon", "--status")["policy"] == "gpreempt"
    process.send_signal(number)
    assert process.wait(60) == 0
    assert not commands.socket.exists()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        return sock.connect_ex(str(path)) == 0

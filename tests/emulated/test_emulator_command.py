"""`runlist emulator`: a command on it is told of signals as it would be alone, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runlist import emulated
from runlist.waiting import readable
from tests.fixtures.compiler import C, compiler
from tests.fixtures.daemon import PATIENCE_S, running, wait_for
from tests.fixtures.shell import shell

EMULATOR = [sys.executable, "-m", "runlist.cli", "emulator"]
COUNTS = """
trap 'echo took' TERM HUP
trap 'exit 9' USR1
echo ready
while :; do sleep 0.05; done
"""


@pytest.fixture
def own_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="runlist-test-") as folder:  # of a short name, as sockets need
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def heed() -> None:
    """Test runners may ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["alone", "group"])
def test_a_command_has_each_signal_once_and_the_folder_goes(own_tmp: Path, send: Callable[[int, int], None]) -> None:
    words = [*EMULATOR, "--", "sh", "-c", COUNTS]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for number in (signal.SIGTERM, signal.SIGHUP):
            send(process.pid, number)
            assert process.stdout.readline() == "took\n"
        send(process.pid, signal.SIGUSR1)
        assert process.stdout.read() == ""
        assert process.wait(PATIENCE_S) == 9
    assert list(own_tmp.glob("runlist-emulated-*")) == []


JUST_BEFORE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
extern char* program_invocation_short_name;
static int waits, polls;
pid_t waitpid(pid_t pid, int* status, int options) {
    pid_t (*real)(pid_t, int*, int) = (pid_t(*)(pid_t, int*, int))dlsym(RTLD_NEXT, "waitpid");
    int ours = !strncmp(program_invocation_short_name, "python", 6);
    if (ours && options & WUNTRACED && !waits++) kill(getpid(), SIGTERM);
    return real(pid, status, options);
}
int poll(struct pollfd* fds, nfds_t count, int ms) {
    int (*real)(struct pollfd*, nfds_t, int) = (int (*)(struct pollfd*, nfds_t, int))dlsym(RTLD_NEXT, "poll");
    if (waits && ms < 0 && !polls++) kill(getpid(), SIGHUP);
    return real(fds, count, ms);
}
"""
"""A signal comes just before it would wait."""


def test_a_signal_that_comes_just_before_it_waits_is_passed_on(own_tmp: Path, tmp_path: Path) -> None:
    source, library = tmp_path / "before.c", tmp_path / "before.so"
    source.write_text(JUST_BEFORE)
    subprocess.run([*compiler(*C), "-shared", "-fPIC", str(source), "-o", str(library), "-ldl"], check=True)
    words = [*EMULATOR, "--", "sh", "-c", COUNTS]
    env = {**os.environ, "LD_PRELOAD": str(library)}
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, bufsize=0, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            for expected in (b"ready\n", b"took\n", b"took\n"):
                assert readable([process.stdout.fileno()], PATIENCE_S)
                assert process.stdout.readline() == expected
        finally:
            os.killpg(process.pid, signal.SIGUSR1)
    assert process.returncode == 9
    assert list(own_tmp.glob("runlist-emulated-*")) == []


def test_without_a_command_it_ends_with_its_gpu(own_tmp: Path) -> None:
    """As when the kernel had no memory left for that."""
    pipe = subprocess.PIPE
    with subprocess.Popen(EMULATOR, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while "RUNLIST_DEVICE" not in process.stdout.readline():
            pass
        (device,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(device), signal.SIGKILL)
        assert process.wait(PATIENCE_S) == 1
        said = process.stderr.read()
    assert said.startswith("runlist: the emulated GPU in ")
    assert said.endswith(" ended (SIGKILL): start it again\n")
    assert list(own_tmp.glob("runlist-emulated-*")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_without_a_command_it_ends_and_the_folder_goes(own_tmp: Path, number: int) -> None:
    with subprocess.Popen(EMULATOR, stdout=subprocess.PIPE, text=True, preexec_fn=heed) as process:  # noqa: PLW1509
        assert process.stdout is not None
        while "RUNLIST_DEVICE" not in process.stdout.readline():
            pass
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0
    assert list(own_tmp.glob("runlist-emulated-*")) == []


def test_a_private_daemon_makes_nothing_of_the_folder_again(own_tmp: Path) -> None:
    """It is there for a while after its GPU is gone."""
    script = """
"$0" -m runlist.cli run -- true
exec "$0" -c 'from runlist.client import Client; print(Client.open().status().pid)'
"""
    done = subprocess.run([*EMULATOR, "--", "sh", "-c", script, sys.executable], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    time.sleep(1)
    assert list(own_tmp.glob("runlist-emulated-*")) == []
    os.kill(int(done.stdout), signal.SIGTERM)
    wait_for(lambda: not running(int(done.stdout)), "the daemon to end")
    assert list(own_tmp.iterdir()) == []


def test_who_ignores_its_children_has_the_commands_exit_code() -> None:
    script = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    words = [sys.executable, "-c", script, *EMULATOR, "--", "sh", "-c", "exit 7"]
    assert subprocess.run(words, timeout=PATIENCE_S, check=False).returncode == 7


def test_a_command_that_stops_itself_gives_the_terminal_back() -> None:
    with shell(os.environ) as bash:
        inner = 'kill -STOP $$; echo ba""ck; exit 5'
        bash.type(f"{' '.join(EMULATOR)} -- sh -c '{inner}'")
        bash.see(b"Stopped")
        bash.type("fg; echo code $?.")
        bash.see(b"back\r\n")
        bash.see(b"code 5.")


@pytest.mark.parametrize("theirs", ["", "/one", "/one::/other"])
def test_the_folder_of_its_libraries_is_first_once(monkeypatch: pytest.MonkeyPatch, theirs: str) -> None:
    """However many commands of ours are inside each other: Triton compiles anew for another list of folders."""
    folder = str(emulated.artefacts())
    monkeypatch.setenv("LD_LIBRARY_PATH", theirs)
    expected = f"{folder}:{theirs}" if theirs else folder
    for _ in range(2):
        told = emulated.environment("/anywhere")["LD_LIBRARY_PATH"]
        assert told == expected
        monkeypatch.setenv("LD_LIBRARY_PATH", told)

"""`runlist run`: a command runs as it would alone, and what it starts is managed."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from runlist.cli import forwarding
from runlist.proc.process import descendants
from runlist.proc.words import command_line
from tests.fixtures.daemon import DEFAULT_SLICES, Commands, Daemon, Slices, run_by, running, wait_for
from tests.fixtures.kept import commands, daemon, kept
from tests.fixtures.shell import shell

__all__ = ["commands", "daemon", "kept"]

PR_SET_PDEATHSIG = 1


def test_run_passes_input_output_and_exit_code_through(commands: Commands) -> None:
    done = commands.run("run", "--", "sh", "-c", "cat; echo out; echo err >&2; exit 7", text="in\n")
    assert done.returncode == 7
    assert (done.stdout, done.stderr) == ("in\nout\n", "err\n")


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0), ("exit 3", 3), ("exit 143", 143),
        *((f"kill -{name} $$", -signal.Signals[f"SIG{name}"]) for name in ("TERM", "KILL", "SEGV", "INT", "PIPE")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("words", [("run", "--"), ("emulator", "--")])
def test_it_ends_as_the_command_ends(
    commands: Commands, daemon: Daemon, words: tuple[str, ...], script: str, code: int
) -> None:
    """By the same signal: a shell ends a loop at Ctrl-C where what it waits for ends by that, and systemd takes the end
    by SIGTERM for a good one, but not the exit code 143."""
    done = commands.run(*words, "sh", "-c", script, preexec_fn=heed_all)
    assert (done.returncode, done.stderr) == (code, "")


def test_run_forwards_signals(commands: Commands, daemon: Daemon) -> None:
    script = "trap 'echo got; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    process = commands.start("run", "--", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "got\n"
    assert process.wait(60) == 5


def test_run_forwards_the_signals_by_which_others_are_stopped(commands: Commands, daemon: Daemon) -> None:
    """As of `docker stop` for images with a STOPSIGNAL: httpd's is SIGWINCH, systemd's SIGRTMIN+3. An alarm that was
    set before (`perl -e 'alarm …; exec …'`), or a watchdog's SIGABRT, would else end us, and leave the command."""
    numbers = [
        signal.SIGWINCH, signal.SIGPWR, signal.SIGALRM, signal.SIGABRT, signal.SIGXCPU, signal.SIGIO, signal.SIGVTALRM,
        signal.SIGPROF, signal.SIGURG, signal.SIGSTKFLT, signal.SIGRTMIN + 3, signal.SIGRTMAX,
    ]  # fmt: skip
    script = (
        f"import signal; numbers = {list(map(int, numbers))}; signal.pthread_sigmask(signal.SIG_BLOCK, numbers); "
        "print('ready', flush=True); [print(int(signal.sigwait(numbers)), flush=True) for _ in numbers]"
    )
    process = commands.start("run", "--", sys.executable, "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for number in numbers:
        process.send_signal(number)
        assert process.stdout.readline() == f"{int(number)}\n"
    assert process.wait(60) == 0


def test_the_command_ends_with_whom_we_would_end_with(commands: Commands, daemon: Daemon) -> None:
    """A parent may have the kernel end what it starts when it ends: by SIGKILL, of which nobody can be told."""
    libc, shows = (
        ctypes.CDLL(None),
        "import ctypes as c; n = c.c_int(); c.CDLL(None).prctl(2, c.byref(n)); print(n.value)",
    )
    for number in (signal.SIGKILL, 0):
        done = commands.ok(
            "run", "--", sys.executable, "-c", shows, preexec_fn=partial(libc.prctl, PR_SET_PDEATHSIG, number, 0, 0, 0)
        )
        assert done == f"{int(number)}\n"


COUNTS = """
import signal, sys, time
names = ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGINT"]
def take(number, _):
    print(signal.Signals(number).name, flush=True)
for name in names:
    signal.signal(getattr(signal, name), take)
signal.signal(signal.SIGQUIT, lambda *_: sys.exit(7))
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


def heed_all() -> None:
    """A shell starts what runs in the background with SIGINT and SIGQUIT ignored."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("way", ["alone", "group", "each", "in a session of its own"])
def test_the_command_has_each_signal_once(commands: Commands, daemon: Daemon, way: str) -> None:
    """A supervisor signals the process that it started, a shell its group, systemd all in the cgroup."""
    before = ["setsid"] if way == "in a session of its own" else []
    process = commands.start(
        "run", "--", *before, sys.executable, "-c", COUNTS, start_new_session=True, preexec_fn=heed_all
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"

    def send(number: signal.Signals) -> None:
        below = [] if way != "each" else descendants([process.pid])[process.pid][1:]
        for pid in below:
            os.kill(pid, number)
        (os.kill if way in ("alone", "each") else os.killpg)(process.pid, number)

    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        send(number)
        assert process.stdout.readline() == f"{number.name}\n"
        time.sleep(0.4)  # a second one would come now
    os.kill(process.pid, signal.SIGQUIT)
    assert process.communicate(timeout=60)[0] == ""
    assert process.returncode == 7


def test_the_command_has_a_signal_once_where_who_tells_of_it_comes_late(commands: Commands, daemon: Daemon) -> None:
    """On a machine with much to do, that hears of a signal long after us."""
    process = commands.start("run", "--", sys.executable, "-c", COUNTS, start_new_session=True, preexec_fn=heed_all)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"

    def ears() -> list[int]:
        below = descendants([process.pid])[process.pid]
        return [pid for pid in below if Path(f"/proc/{pid}/comm").read_text().strip() == forwarding.EAR]

    wait_for(ears)  # it may take its name after the command has begun
    (ear,) = ears()
    os.kill(ear, signal.SIGSTOP)
    wait_for(lambda: Path(f"/proc/{ear}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    os.killpg(process.pid, signal.SIGTERM)
    assert process.stdout.readline() == "SIGTERM\n"
    time.sleep(0.2)
    os.kill(ear, signal.SIGCONT)
    time.sleep(0.4)
    os.kill(process.pid, signal.SIGQUIT)
    assert process.communicate(timeout=60)[0] == ""
    assert process.returncode == 7


IN_BETWEEN = """
import os, signal, subprocess, runlist.cli.forwarding as forwarding
ready = forwarding.readable
def readable(descriptors, wait_s):
    found = ready(descriptors, wait_s)
    if found:
        one._listen()
    return found
forwarding.readable = readable
one = forwarding.Forwarding()
command = subprocess.Popen(["sleep", "100"])
one.to(command.pid)
os.killpg(0, signal.SIGUSR1)
print(command.wait())
one.close()
"""


def test_what_the_handler_of_another_signal_has_read_is_not_waited_for() -> None:
    """systemd sends two, and a terminal that is closed: the second may come while the first one is looked at."""
    words = [sys.executable, "-c", IN_BETWEEN]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, start_new_session=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{-signal.SIGUSR1}\n", "")


def test_nothing_is_left_of_a_command_that_is_killed(commands: Commands, daemon: Daemon) -> None:
    process = commands.start("run", "--", "sleep", "1000")
    wait_for(lambda: [command_line(pid) for pid in run_by(process.pid)] == ["sleep 1000"])
    below = descendants([process.pid])[process.pid][1:]
    (command,) = run_by(process.pid)
    assert len(below) == 2  # and who hears signals
    process.kill()
    process.wait()
    wait_for(lambda: [pid for pid in below if running(pid)] == [command])
    os.kill(command, signal.SIGKILL)


def test_run_hands_on_what_is_ignored(commands: Commands, daemon: Daemon) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        ignored = commands.ok("run", "--", "grep", "SigIgn", "/proc/self/status").split()[1]
    finally:
        signal.signal(signal.SIGHUP, before)
    assert int(ignored, 16) & 1 << signal.SIGHUP - 1


@pytest.mark.parametrize("named", [{}, {"LC_CTYPE": "C"}, {"LANG": "C.UTF-8"}, {"LC_CTYPE": "C.UTF-8", "LANG": "C"}])
@pytest.mark.parametrize("words", [("run", "--"), ("emulator", "--")])
def test_the_locale_is_the_one_that_we_were_started_with(
    commands: Commands, daemon: Daemon, named: dict[str, str], words: tuple[str, ...]
) -> None:
    """Where none is named Python sets one, for what it starts as well: in containers, services and crontabs."""
    plain = {name: value for name, value in commands.environment.items() if not name.startswith(("LC_", "LANG"))}
    lines = commands.ok(*words, "env", env={**plain, **named}).splitlines()
    found = dict(line.split("=", 1) for line in lines if line.startswith(("LC_", "LANG")))
    assert found == named


def test_what_the_commands_python_does_in_the_end_we_do_not(commands: Commands, daemon: Daemon) -> None:
    done = commands.run("run", "--", "sh", "-c", "exit 3", env={**commands.environment, "PYTHONINSPECT": "1"})
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


@pytest.mark.parametrize("behind", ["", os.pathsep])
def test_the_commands_modules_are_not_ours(commands: Commands, daemon: Daemon, tmp_path: Path, behind: str) -> None:
    """PYTHONPATH is for the program, and for another Python where modules of a cluster set it."""
    for name in ("msgspec", "typer", "selectors", "ctypes"):
        (tmp_path / f"{name}.py").write_text("answer = 42\n")
    env = {**commands.environment, "PYTHONPATH": f"{tmp_path}{behind}"}
    code = "import msgspec, selectors, typer; print(msgspec.answer + typer.answer + selectors.answer)"
    done = commands.run("run", "--", sys.executable, "-c", code, env=env, cwd=tmp_path if behind else commands.folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "126\n", "")


@pytest.mark.parametrize(
    ("content", "code", "what"),
    [
        ("echo $1 $0; exit 9\n", 9, ""),
        ("#!/no/such/interpreter\n", 127, "its interpreter"),
        ("", 0, ""),
        ("\x7fELF\0of another machine", 126, "exec format error"),
    ],
)
def test_run_of_a_script(
    commands: Commands, daemon: Daemon, tmp_path: Path, content: str, code: int, what: str
) -> None:
    script = tmp_path / "script"
    script.write_text(content)
    script.chmod(0o755)
    done = commands.run("run", "--", str(script), "x")
    assert done.returncode == code
    assert what in done.stderr
    assert len(done.stderr.splitlines()) == bool(what)
    assert done.stdout == (f"x {script}\n" if "echo" in content else "")


def test_run_where_the_folder_is_gone(commands: Commands, daemon: Daemon) -> None:
    done = commands.run(
        "run",
        "--",
        "sh",
        "-c",
        "mkdir gone && cd gone && rmdir ../gone && exec $0 -m runlist.cli run -- $0 -c 'print(5)'",
        sys.executable,
    )
    assert done.stdout == "5\n", done


def test_run_manages_what_the_command_starts(commands: Commands, daemon: Daemon, slices: Slices) -> None:
    words = ["-m", "runlist.workloads.batch", "--rounds", "20000"]
    process = commands.start(
        "run", "--class", "batch", "--", "sh", "-c", '"$@"; exit $?', "sh", sys.executable, *words,
        stdin=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    pid = json.loads(process.stdout.readline())["pid"]
    process.stdin.write("run\n")
    process.stdin.flush()
    wait_for(daemon.client.ps, "the program to be noticed")
    assert [(task.pid, task.task_class) for task in daemon.client.ps()] == [(pid, "batch")]
    assert slices.of(pid) == [1] * 4
    process.stdout.readline()
    process.stdin.write("quit\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["correct"]
    assert process.wait(60) == 0
    wait_for(lambda: not daemon.client.ps(), "the program to be forgotten")


def test_run_goes_on_when_the_daemon_dies(commands: Commands, daemon: Daemon, slices: Slices) -> None:
    words = [sys.executable, "-m", "runlist.workloads.batch", "--rounds", "20000"]
    process = commands.start("run", "--class", "batch", "--", *words, stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    pid = json.loads(process.stdout.readline())["pid"]
    wait_for(daemon.client.ps, "the program to be noticed")
    daemon.kill()
    wait_for(lambda: slices.of(pid) == DEFAULT_SLICES, "the slices to be put back")
    process.stdin.write("run\nquit\n")
    process.stdin.flush()
    process.stdout.readline()
    assert json.loads(process.stdout.readline())["correct"]
    assert process.wait(60) == 0


def test_what_the_command_leaves_behind_stays_in_its_tree(
    commands: Commands, daemon: Daemon, slices: Slices, tmp_path: Path
) -> None:
    """Also what it starts later."""
    later = "import subprocess, sys; open(sys.argv[1]).read(); subprocess.Popen(sys.argv[2:], stdin=-1).wait()"
    os.mkfifo(tmp_path / "go")
    commands.ok(
        "run", "--class", "batch", "--", "sh", "-c", '"$@" >/dev/null 2>&1 &', "sh", sys.executable, "-c", later,
        str(tmp_path / "go"), sys.executable, "-m", "runlist.workloads.batch", "--rounds", "20000",
    )  # fmt: skip
    (tmp_path / "go").write_text("go")
    wait_for(daemon.client.ps, "the program to be noticed")
    (task,) = daemon.client.ps()
    assert task.task_class == "batch"
    wait_for(lambda: slices.of(task.pid) == [1] * 4)
    os.kill(task.pid, signal.SIGKILL)
    wait_for(lambda: not daemon.client.ps(), "the program to be forgotten")
    wait_for(lambda: not daemon.client.status().tasks)


LEAVES = """
import os, signal
if not (left := os.fork()):
    os.closerange(0, 3)
    signal.pause()
if not (ended := os.fork()):
    os._exit(0)
os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
print(os.environ["RUNLIST_REGION"], left)
"""


def test_the_region_stays_for_whom_the_command_leaves_beside_one_that_has_ended(
    commands: Commands, daemon: Daemon
) -> None:
    region, left = commands.ok("run", "--", sys.executable, "-c", LEAVES).split()
    try:
        assert Path(region).exists()
    finally:
        os.kill(int(left), signal.SIGKILL)


def test_run_passes_descriptors_through(commands: Commands, daemon: Daemon) -> None:
    """As `env` and `nice` do: bash gives <(…) to a program so, make its jobserver, systemd its sockets."""
    reader, writer = os.pipe()
    os.write(writer, b"hello")
    os.close(writer)
    done = commands.run("run", "--memory", "1G", "--", "cat", f"/dev/fd/{reader}", pass_fds=[reader])
    os.close(reader)
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello", "")


@pytest.mark.parametrize("words", ["run --memory 1G --", "emulator --"])
def test_a_service_manager_means_the_command(commands: Commands, daemon: Daemon, words: str) -> None:
    """By a process id, as systemd says for whom sockets and a watchdog are: who finds another there takes nothing."""
    shows = "echo $(($LISTEN_PID - $$)) $(($WATCHDOG_PID - $$)) $LISTEN_FDS ${LISTEN_PIDFDID-none} $OTHER"
    script = (
        "export LISTEN_PID=$$ WATCHDOG_PID=$$ SYSTEMD_EXEC_PID=1 LISTEN_FDS=1 LISTEN_PIDFDID=7 OTHER='a  b'; "
        f'exec {sys.executable} -m runlist.cli {words} sh -c "$0; echo $SYSTEMD_EXEC_PID"'
    )
    done = subprocess.run(
        ["sh", "-c", script, shows], env=commands.environment, cwd=commands.folder, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 0 1 none a b\n1\n", "")


@pytest.mark.parametrize("options", ["--memory 1G", "--class latency", "--memory 1G --cap 50"])
def test_run_keeps_the_numbers_that_programs_use_themselves_free(
    commands: Commands, daemon: Daemon, tmp_path: Path, options: str
) -> None:
    """`ffmpeg -progress pipe:3`, `gpg --status-fd 3`: what a program writes there must not go into a file of ours."""
    inner = "echo half >&3; /bin/true; for fd in 4 5 6 7 8 9; do [ ! -e /proc/$$/fd/$fd ] || echo $fd; done"
    script = f'exec 3>{tmp_path}/progress; exec {sys.executable} -m runlist.cli run {options} -- bash -c "$0"'
    done = subprocess.run(
        ["bash", "-c", script, inner], env=commands.environment, cwd=commands.folder, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "progress").read_text() == "half\n"


def test_run_where_children_are_ignored(commands: Commands, daemon: Daemon) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        process = commands.start("run", "--", "sed", "-n", "s/SigIgn://p; $ q5", "/proc/self/status")
    finally:
        signal.signal(signal.SIGCHLD, before)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 5
    assert int(said, 16) & 1 << signal.SIGCHLD - 1


def test_signals_are_at_their_defaults_however_the_command_is_named(commands: Commands, daemon: Daemon) -> None:
    """Also those that the C library keeps for itself: its posix_spawn would leave them ignored."""
    words = ["grep", "SigIgn", "/proc/self/status"]
    path = shutil.which(words[0])
    assert path is not None
    alone = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert commands.ok("run", "--", *words) == alone
    assert commands.ok("run", "--", path, *words[1:]) == alone


@pytest.mark.parametrize("how", ["TSTP", "STOP"])
def test_a_command_that_stops_itself_gives_the_terminal_back(commands: Commands, daemon: Daemon, how: str) -> None:
    """As editors and screens do at Ctrl-Z, which is a key to them: the shell waits for us, and not for the command."""
    with shell(commands.environment, commands.folder) as bash:
        inner = f'kill -{how} $$; echo ba""ck; exit 5'
        bash.type(f"{sys.executable} -m runlist.cli run -- sh -c '{inner}'")
        bash.see(b"Stopped")
        bash.type("fg; echo code $?.")
        bash.see(b"back\r\n")
        bash.see(b"code 5.")

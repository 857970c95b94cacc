"""`runlist run --share sms`: programs side by side on the SMs, as clients of MPS, and nothing left of it afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from runlist import interpreter
from runlist.sharing import attendant, mps, places
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import Commands, run_by, running, wait_for
from tests.fixtures.effort import TIMES
from tests.fixtures.mps import Sharing, commands, end, machine, needs_stand_in, place_of, sharing

SHARE = ("run", "--share", "sms", "--class")


__all__ = ["commands", "machine", "sharing"]


def test_the_command_is_a_client(commands: Commands, sharing: Sharing) -> None:
    first = commands.start(*SHARE, "latency", "--", "sh", "-c", "env -0; read line", stdin=subprocess.PIPE)
    wait_for(lambda: _folders(sharing.root) and (sharing.folder() / "who-0").exists(), "it has its place")
    batch, place = sharing.started("batch")
    assert place == "1"
    page = sharing.folder() / places.PAGE
    assert page.stat().st_mode & 0o777 == 0o600
    assert page.stat().st_size == 0  # the library makes it as long as it needs
    assert end(batch) == (7, "")
    out, said = first.communicate("\n", timeout=60)
    assert said == ""
    environment = dict(line.partition("=")[::2] for line in out.split("\0"))
    assert environment["RUNLIST_OPERATIONS"] == str(page)
    assert environment["RUNLIST_OPERATIONS_CLIENT"] == "0"
    assert environment["CUDA_MPS_PIPE_DIRECTORY"] == str(page.parent / "pipe")
    assert environment["CUDA_MPS_CLIENT_PRIORITY"] == "0"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in environment
    assert "librunlist.so" in environment["LD_PRELOAD"]


def test_it_gets_a_part_of_the_sms(commands: Commands) -> None:
    script = 'echo "$RUNLIST_SMS" "$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" "$CUDA_MPS_CLIENT_PRIORITY"; exec "$@"'
    look = interpreter.command("runlist.sharing.probe")
    done = commands.run(*SHARE, "batch", "--sms", "55", "--", "sh", "-c", script, "sh", *look)
    first, second = done.stdout.splitlines()
    given = json.loads(second)["gpus"][0]["sms"]
    assert first.split()[0] == str(given)  # as the driver tells the command itself
    assert first.split()[2] == "1"
    if not ON_NVIDIA:
        assert first == "56 41 1"
    assert done.stderr == ("" if given == 55 else f"runlist: {given} SMs instead of 55: MPS gives them in steps\n")


def test_more_sms_than_there_are(commands: Commands) -> None:
    said = commands.fails(2, "run", *SHARE[1:], "batch", "--sms", "9999", "--", "true")
    assert "sms=9999: take 1% to 100%, or a number of SMs, 1 to" in said


def test_ten_starts_at_once(sharing: Sharing) -> None:
    """One control daemon for all, and a place for each."""
    for _ in range(TIMES):
        started = [sharing.start("latency" if number == 4 else "batch") for number in range(10)]
        assert sorted(int(place_of(process)) for process in started) == list(range(10))
        assert int((sharing.folder() / "who-0").read_text()) == started[4].pid
        assert running(sharing.control)
        assert sharing.attendant
        for process in started:
            assert process.stdin is not None
            process.stdin.close()
        assert [process.wait(60) for process in started] == [7] * 10
        sharing.wait_until_nothing_is_left()


def test_there_is_one_latency_program(commands: Commands, sharing: Sharing) -> None:
    first, place = sharing.started("latency")
    assert place == "0"
    first.kill()  # its command goes on, and keeps the place
    first.wait()
    said = commands.fails(1, *SHARE, "latency", "--", "true")
    assert f"process {first.pid} is the latency program on these SMs" in said
    assert first.stdin is not None
    first.stdin.close()


def test_a_server_that_is_killed(sharing: Sharing) -> None:
    """`run` says why the program fails, and the next one has a new server."""
    process, _ = sharing.started("batch")
    pipe = sharing.folder() / attendant.PIPE
    (server,) = mps.servers(sharing.program, pipe) or []
    os.kill(server, signal.SIGKILL)
    assert process.stderr is not None
    line = f"runlist: the MPS server (process {server}) has ended: the programs on it get errors from the driver"
    assert process.stderr.readline().startswith(line)
    other, _ = sharing.started("batch")
    assert mps.servers(sharing.program, pipe) not in (None, [], [server])
    assert end(process) == (7, "")
    (command,) = run_by(other.pid)
    os.kill(command, signal.SIGKILL)
    assert other.wait(60) == -signal.SIGKILL


def test_a_control_daemon_that_is_killed(commands: Commands, sharing: Sharing) -> None:
    """Programs go on; another one can come when they have ended."""
    process, _ = sharing.started("batch")
    os.kill(sharing.control, signal.SIGKILL)
    assert "control daemon of these GPUs does not answer" in commands.fails(1, *SHARE, "batch", "--", "true")
    assert end(process)[0] == 7
    sharing.wait_until_nothing_is_left()


@needs_stand_in
def test_who_only_asks_whether_an_attendant_is_there_keeps_none_from_starting(sharing: Sharing, tmp_path: Path) -> None:
    """As each program does that ends: it has the lock for that moment."""
    tmp_path.chmod(0o700)
    lock = os.open(tmp_path / attendant.LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    assert places.locked(lock)
    os.close(places.open_places(tmp_path))
    ours, theirs = os.pipe()
    words = [str(tmp_path), str(tmp_path / places.TURN), sharing.program, "", str(theirs)]
    command = interpreter.command("runlist.sharing.attendant", *words)
    subprocess.run(command, env=sharing.commands.environment, pass_fds=[theirs], check=True)
    os.close(theirs)
    threading.Timer(0.1, os.close, [lock]).start()
    with open(ours, "rb") as said:
        assert said.readline() == b"ready\n"
    wait_for(lambda: not tmp_path.exists(), "it ends, as nobody is there")


def test_an_attendant_that_is_killed(commands: Commands, sharing: Sharing) -> None:
    process, _ = sharing.started("latency")
    control = sharing.control
    os.kill(sharing.attendant, signal.SIGKILL)
    wait_for(lambda: not running(control), "the control daemon ends with it")
    assert "control daemon of these GPUs does not answer" in commands.fails(1, *SHARE, "batch", "--", "true")
    assert end(process)[0] == 7
    assert not sharing.left()  # whoever is the last one clears away


STEPS: dict[str, str] = {
    "control": f"{attendant.PIPE}/control",
    "place": "who-0",
    "pipe": attendant.PIPE,
    "attendant": attendant.LOCK,
    "page": places.PAGE,
}
"""What there is once a `run` that starts has come so far. A killed one may leave the last to the next one."""


def test_a_run_that_is_killed_as_it_starts(commands: Commands, sharing: Sharing) -> None:
    """At every step: nothing is left once its command, if it had begun, has ended, and the next one has started."""
    for step in [*STEPS.values()] * TIMES:
        process = sharing.start("latency")
        wait_for(
            lambda made=step, run=process: (
                any((entry / made).exists() for entry in _folders(sharing.root)) or run.poll() is not None
            ),
            step,
        )
        process.kill()
        process.communicate(timeout=60)
        wait_for(lambda: not [one for one in sharing.left() if not isinstance(one, Path)], "no process is left")
    assert commands.run(*SHARE, "latency", "--", "true").returncode == 0


def _folders(root: Path) -> list[Path]:
    return [entry for entry in root.iterdir() if entry.is_dir()] if root.exists() else []


def test_somebody_elses_mps_is_used_and_left_running(commands: Commands, sharing: Sharing) -> None:
    pipe = commands.folder / "theirs"
    pipe.mkdir(mode=0o700)
    commands.environment["CUDA_MPS_PIPE_DIRECTORY"] = str(pipe)
    said = commands.fails(4, *SHARE, "batch", "--", "true")
    assert f"no MPS control daemon answers in {pipe}: start one there, or unset CUDA_MPS_PIPE_DIRECTORY" in said
    named = {**commands.environment, **mps.folders(pipe, pipe)}
    theirs = subprocess.Popen([sharing.program, "-f"], env=named, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: mps.servers(sharing.program, pipe) is not None, "it answers")
        script = "echo $CUDA_MPS_PIPE_DIRECTORY $RUNLIST_OPERATIONS_CLIENT"
        assert commands.ok(*SHARE, "batch", "--", "sh", "-c", script) == f"{pipe} 1\n"
        assert not sharing.left()
        assert mps.servers(sharing.program, pipe) is not None
    finally:
        mps.ask(sharing.program, pipe, "quit")
        assert theirs.wait(60) is not None


@needs_stand_in
def test_mps_that_does_not_start(commands: Commands, sharing: Sharing) -> None:
    sharing.steering.write_text("fail An instance of this daemon is already running")
    said = commands.fails(5, *SHARE, "batch", "--", "true")
    assert "nvidia-cuda-mps-control did not start: An instance of this daemon is already running" in said
    sharing.wait_until_nothing_is_left()  # the attendant ends after it said so


@needs_stand_in
def test_a_server_that_is_out_of_order(sharing: Sharing) -> None:
    process, _ = sharing.started("batch")
    sharing.steering.write_text("fault")
    assert end(process) == (
        7,
        "runlist: the MPS server is out of order: the fault of one program took down all that share its SMs\n",
    )


@needs_stand_in
def test_ps_shows_who_shares_sms(commands: Commands, sharing: Sharing, tmp_path: Path) -> None:
    worker = [sys.executable, "-m", "tests.fixtures.worker"]
    asked = {"latency": (*SHARE, "latency"), "batch": (*SHARE, "batch", "--sms", "40%"), "normal": ("run",)}
    started = []
    for name, words in asked.items():
        (counter := tmp_path / name).write_bytes(bytes(8))
        started.append(commands.start(*words, "--", *worker, str(counter), stdin=subprocess.PIPE))

    def found() -> dict[str, dict[str, Any]]:
        return {task["task_class"]: task for task in commands.json("ps")}

    for process in started:
        assert process.stdout is not None
        process.stdout.readline()  # it works
    wait_for(lambda: len(found()) == 3 and found()["latency"]["together"], "three tasks")
    tasks = found()
    assert {name: (task["shares"], task["sms"], task["sms_percent"]) for name, task in tasks.items()} == {
        "latency": ("SMs", None, None),
        "batch": ("SMs", 54, 40),
        "normal": ("time", None, None),
    }
    assert tasks["latency"]["together"] == [tasks["batch"]["pid"]]
    wait_for(lambda: all(found()[name]["clients"] for name in ("latency", "batch")), "the clients")
    clients = {name: [one["client"] for one in task["clients"]] for name, task in found().items()}
    assert clients == {"latency": [0], "batch": [1], "normal": []}
    assert "54 (40 %)" in commands.ok("ps")
    for process in started:
        process.communicate("quit\n", timeout=60)

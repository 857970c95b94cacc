"""Memory limits from end to end: real processes under `runlist run`, the library in them, the daemon, a GPU."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import runlist
from tests.fixtures.compiler import C, compiler
from tests.fixtures.daemon import (
    NOBODY,
    Commands,
    Daemon,
    Slices,
    needs_root,
    refusal,
    running,
    task_of,
    wait_for,
)
from tests.fixtures.holder import FOUR_LOOKS_S, OUT_OF_MEMORY, Holder, drop_capabilities
from tests.fixtures.kept import commands, daemon, kept

__all__ = ["commands", "daemon", "kept"]

GiB = 1 << 30
RUN = (sys.executable, "-m", "runlist.cli", "run")

Run = Callable[..., Holder]


@pytest.fixture
def run(commands: Commands, daemon: Daemon) -> Iterator[Run]:
    """Starts a holder under `runlist run` with these words, and makes it have a context; it ends with the test."""
    with contextlib.ExitStack() as stack:

        def start(*words: str, opened: bool = True, environment: dict[str, str] | None = None) -> Holder:
            variables = {**commands.environment, **(environment or {})}
            command = words if "--" in words else (*words, "--")
            holder = stack.enter_context(Holder([*RUN, *command], variables))
            if opened:
                assert holder.do("open") == 0
            return holder

        yield start


def managed(daemon: Daemon, pid: int) -> Any:
    """The task of a process, once it is there."""
    wait_for(lambda: any(task.pid == pid for task in daemon.client.ps()), f"process {pid} to be listed")
    return task_of(daemon, pid)


def reached(daemon: Daemon, pid: int) -> Any:
    """The same, once it is more than a process that holds memory: so it may be listed before."""
    wait_for(lambda: managed(daemon, pid).reached_by, f"process {pid} to be reached")
    return task_of(daemon, pid)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param([], id="here"),
        pytest.param(["unshare", "--pid", "--fork", "--mount-proc"], id="elsewhere", marks=needs_root),
    ],
)
def test_what_is_held_counts_once_however_often_the_daemon_looks(run: Run, words: list[str]) -> None:
    holder = run("--memory", "4G", "--", *words)
    assert holder.do("take 1000") == 0
    holder.do("spawn")
    assert [holder.do("1 open"), holder.do("1 take 1000")] == [0, 0]
    room = holder.do("info")
    time.sleep(FOUR_LOOKS_S)
    assert holder.do("info") == room
    assert holder.do("take 500") == 0


def test_beyond_the_limit_an_allocation_is_refused_and_room_that_is_given_back_is_had_again(
    run: Run, daemon: Daemon
) -> None:
    holder = run("--memory", "4G")
    assert [holder.do("take 2000"), holder.do("take 3000"), holder.do("take 500")] == [0, OUT_OF_MEMORY, 0]
    assert [holder.do("give"), holder.do("take 600")] == [0, 0]
    task = reached(daemon, holder.pid)
    assert (task.memory_limit_bytes, task.enforcement, task.reached_by) == (4 * GiB, "memory, queries", "own right")
    assert task.memory_overhead_bytes is not None
    assert task.memory_overhead_bytes > 0
    assert 2600 << 20 <= task.memory_bytes <= 4 * GiB
    assert task.memory_refusals == 1
    assert holder.quit() == ""
    wait_for(lambda: not daemon.client.ps())
    assert [gpu.memory_refusals for gpu in daemon.client.status().gpus] == [1]


def test_without_a_limit_the_whole_card_is_there(run: Run, daemon: Daemon) -> None:
    holder = run()
    _, total = holder.do("info")
    assert total > 100_000
    task = managed(daemon, holder.pid)
    assert (task.memory_limit_bytes, task.enforcement) == (None, "memory, queries")


def test_queries_show_the_limit(run: Run) -> None:
    holder = run("--memory", "2G")
    holder.do("take 512")
    free, total = holder.do("info")
    assert (total, holder.do("total")) == (2048, 2048)
    assert holder.do("nvml") == [free, 2048]
    assert 1000 < free <= 1536


def test_a_tree_shares_its_limit(run: Run, daemon: Daemon) -> None:
    holder = run("--memory", "4G")
    child = holder.do("spawn")
    assert holder.do("1 open") == 0
    assert [holder.do("take 1400"), holder.do("1 take 1400"), holder.do("1 take 1400")] == [0, 0, OUT_OF_MEMORY]
    assert holder.do("1 info")[0] == holder.do("info")[0] < 1300
    assert [holder.do("give"), holder.do("1 take 1400")] == [0, 0]
    assert managed(daemon, child).memory_limit_bytes == 4 * GiB


def test_who_is_killed_gives_back_its_share(run: Run) -> None:
    holder = run("--memory", "4G")
    child = holder.do("spawn")
    assert [holder.do("1 open"), holder.do("1 take 2500"), holder.do("take 2000")] == [0, 0, OUT_OF_MEMORY]
    os.kill(child, signal.SIGKILL)  # and stays a zombie: nobody waits for it
    wait_for(lambda: holder.do("take 2000") == 0, "the killed process' share", 3)


def test_a_limit_changes_while_the_program_runs(run: Run, daemon: Daemon, commands: Commands) -> None:
    holder = run("--memory", "1G")
    assert holder.do("take 1500") == OUT_OF_MEMORY
    root = holder.process.pid
    commands.ok("set", str(root), "memory=4G")
    assert [holder.do("take 1500"), holder.do("total")] == [0, 4096]

    done = commands.run("set", str(root), "memory=1G")
    assert done.returncode == 0
    assert done.stderr.startswith(f"runlist: process {holder.pid} holds ")
    assert "more than its new limit: new allocations" in done.stderr
    assert [holder.do("take 1"), holder.do("info")[0]] == [OUT_OF_MEMORY, 0]
    assert [holder.do("give"), holder.do("take 1")] == [0, 0]

    reached(daemon, holder.pid)
    commands.ok("set", str(holder.pid), "memory=max")  # of any process of the tree, for the tree
    assert [holder.do("take 5000"), task_of(daemon, holder.pid).memory_limit_bytes] == [0, None]


def test_a_limit_above_the_card_is_taken_with_a_remark(run: Run, commands: Commands, daemon: Daemon) -> None:
    holder = run("--memory", "2T")
    assert holder.do("total") < 2 << 20
    assert "a limit of 2048.0 GiB has no effect: the GPU has" in holder.quit()


def test_no_limit_from_outside(commands: Commands, daemon: Daemon) -> None:
    with Holder([], commands.environment) as holder:
        assert holder.do("open") == 0
        assert "cannot be limited from outside: start it with `runlist run --memory`" in commands.fails(
            5, "attach", str(holder.pid), "--memory", "1G"
        )
        assert daemon.client.ps() == []
        daemon.client.attach(holder.pid)
        line = refusal(lambda: daemon.client.set(holder.pid, {"memory": "1G", "weight": "7"}))
        assert line.startswith(f"process {holder.pid}: its memory cannot be limited from outside")
        assert task_of(daemon, holder.pid).weight == 100


def test_without_the_library_there_is_no_limit(commands: Commands, daemon: Daemon) -> None:
    assert "leave out --no-preload" in commands.fails(2, "run", "--no-preload", "--memory", "1G", "--", "true")
    script = "echo ${LD_PRELOAD-none} ${RUNLIST_REGION-none} ${RUNLIST_STRICT-none}"
    assert commands.ok("run", "--no-preload", "--", "sh", "-c", script) == "none none none\n"


def test_what_was_preloaded_already_stays_behind_ours(commands: Commands, daemon: Daemon) -> None:
    commands.environment["LD_PRELOAD"] = "libm.so.6 libdl.so.2"
    ours, *others = commands.ok("run", "--no-strict", "--", "sh", "-c", "echo $LD_PRELOAD").strip().split(":")
    assert (Path(ours).name, others) == ("librunlist.so", ["libm.so.6", "libdl.so.2"])


@pytest.mark.parametrize(
    ("options", "strict"),
    [([], ""), (["--no-strict"], ""), (["--memory", "2G"], "1"), (["--memory", "2G", "--no-strict"], "0")],
)
def test_strict_is_about_a_limit_that_was_asked_for(
    commands: Commands, daemon: Daemon, options: list[str], strict: str
) -> None:
    assert commands.ok("run", *options, "--", "sh", "-c", "echo $RUNLIST_STRICT") == f"{strict}\n"


def test_hamis_names_are_taken_and_ours_win(run: Run, daemon: Daemon) -> None:
    hami = {"CUDA_DEVICE_MEMORY_LIMIT": "1g", "CUDA_DEVICE_SM_LIMIT": "30", "CUDA_TASK_PRIORITY": "1"}
    task = managed(daemon, run(environment=hami).pid)
    assert (task.memory_limit_bytes, task.cap_percent, task.task_class) == (GiB, 30.0, "batch")
    assert task.cap_by == "driver"
    words = ("--memory", "3G", "--cap", "max", "--class", "normal")
    task = managed(daemon, run(*words, environment=hami).pid)
    assert (task.memory_limit_bytes, task.cap_percent, task.task_class) == (3 * GiB, None, "normal")


@pytest.mark.parametrize("switch", ["RUNLIST_DISABLE", "CUDA_DISABLE_CONTROL"])
def test_a_library_that_is_turned_off_is_told(run: Run, daemon: Daemon, commands: Commands, switch: str) -> None:
    holder = run("--no-strict", "--memory", "1G", environment={switch: "true"})
    assert managed(daemon, holder.pid).enforcement == f"not loaded: {switch} is set"
    commands.environment["RUNLIST_DISABLE"] = "1"
    assert "which RUNLIST_DISABLE turns off" in commands.fails(2, "run", "--memory", "1G", "--", "true")


def test_of_hamis_limits_of_single_gpus_the_smallest_holds(run: Run, daemon: Daemon) -> None:
    holder = run(environment={"CUDA_DEVICE_MEMORY_LIMIT_0": "2g", "CUDA_DEVICE_MEMORY_LIMIT_1": "1g"})
    assert [holder.do("take 1100"), holder.do("total")] == [OUT_OF_MEMORY, 1024]
    assert managed(daemon, holder.pid).memory_limit_bytes == GiB


def test_what_run_takes_from_the_environment_is_no_matter_for_the_library(run: Run, daemon: Daemon) -> None:
    holder = run("--memory", "1G", environment={"RUNLIST_CAP": "30000 100000"})  # which is more than the library knows
    assert managed(daemon, holder.pid).cap_percent == 30.0
    assert holder.quit() == ""


@pytest.fixture
def regions(commands: Commands) -> Iterator[Path]:
    """Where regions are, without what earlier tests killed and left; a later one finds nothing of this one's."""
    folder = commands.folder / "regions"
    shutil.rmtree(folder, ignore_errors=True)
    yield folder
    if folder.is_file():
        folder.unlink()


def test_the_region_goes_with_the_tree(run: Run, regions: Path, commands: Commands) -> None:
    holder = run("--memory", "1G")
    (region,) = regions.iterdir()
    assert (region.stat().st_mode & 0o7777, regions.stat().st_mode & 0o7777) == (0o600, 0o700)
    holder.quit()
    assert list(regions.iterdir()) == []
    os.kill(run("--memory", "1G").process.pid, signal.SIGKILL)
    wait_for(lambda: list(regions.iterdir()))
    commands.ok("run", "--", "true")  # the next one cleans up what a killed one left, once its program is gone


@pytest.mark.parametrize("variables", ["LD_PRELOAD", "RUNLIST_REGION", "LD_PRELOAD RUNLIST_REGION RUNLIST_STRICT"])
def test_a_child_that_drops_the_library_is_reported_and_suspended(
    run: Run, daemon: Daemon, variables: str, commands: Commands
) -> None:
    holder = run("--memory", "2G")
    child = holder.do(f"spawn {variables}")
    if "LD_PRELOAD" not in variables:  # then the library, which is to be strict, does not let it go on
        assert holder.do("1 open") in (0, 100, 999)
    else:
        assert [holder.do("1 open"), holder.do("1 take 1000")] == [0, 0]
    task = managed(daemon, child)
    wait_for(lambda: task_of(daemon, child).enforcement.startswith("not loaded: "))
    assert not task.suspended
    assert holder.do("1 take 3000") == 0  # nothing in it says no
    wait_for(lambda: task_of(daemon, child).suspended, "the child to be suspended")
    why = task_of(daemon, child).why
    assert "suspended: its tree holds" in why
    assert "with a limit of 2.0 GiB" in why
    assert "not loaded" in why
    assert "give its tree a larger limit" in refusal(lambda: daemon.client.resume(child))
    wait_for(lambda: task_of(daemon, holder.pid).suspended, "the rest of its tree to be suspended")
    assert task_of(daemon, holder.pid).why.endswith("with a limit of 2.0 GiB")
    assert "(not loaded)" in commands.ok("ps")
    daemon.client.set(holder.process.pid, {"memory": "20G"})
    wait_for(lambda: not any(task.suspended for task in daemon.client.ps()), "the tree to run again")
    assert "a process is not limited from inside" in daemon.log.read_text()


def test_a_run_within_a_run_keeps_the_outer_limit(run: Run, commands: Commands) -> None:
    holder = run("--memory", "1G", "--", *RUN, "--class", "batch", "--")
    assert [holder.do("take 1500"), holder.do("total")] == [OUT_OF_MEMORY, 1024]
    said = commands.run("run", "--", *RUN, "--cap", "30", "--", "true").stderr
    assert re.fullmatch(
        r"runlist: this is below process \d+, which is managed: its settings count for all below it; .*\n", said
    )
    commands.environment["RUNLIST_REGION"] = "/some/region"
    assert "inside another `runlist run`" in commands.fails(2, "run", "--memory", "9G", "--", "true")


def test_a_program_that_was_preloaded_by_hand_brings_its_region(commands: Commands, daemon: Daemon) -> None:
    runtime = commands.folder / "runtime"
    runtime.mkdir(mode=0o700)
    by_hand = {"LD_PRELOAD": str(runlist.library()), "RUNLIST_MEMORY": "2G", "XDG_RUNTIME_DIR": str(runtime)}
    with Holder([], {**commands.environment, **by_hand}) as holder:
        daemon.client.attach(holder.pid, wait=True)
        assert [holder.do("open"), holder.do("take 3000")] == [0, OUT_OF_MEMORY]
        task = managed(daemon, holder.pid)
        assert (task.memory_limit_bytes, task.enforcement) == (2 * GiB, "memory, queries")
        commands.ok("set", str(holder.pid), "memory=5G")
        assert holder.do("take 3000") == 0


def test_rules_limit_memory_too(commands: Commands, start_daemon: Callable[..., Daemon]) -> None:
    rules = commands.folder / "rules.toml"
    rules.write_text('[[rule]]\ncommand = "*tests.fixtures.holder*"\nset = { memory = "1G" }\n')
    daemon = start_daemon("--rules", str(rules))
    with Holder([*RUN, "--"], commands.environment) as holder:
        assert [holder.do("open"), holder.do("take 1500")] == [0, OUT_OF_MEMORY]
        assert managed(daemon, holder.pid).memory_limit_bytes == GiB
    with Holder([*RUN, "--memory", "2G", "--"], commands.environment) as holder:  # who asks wins
        assert [holder.do("open"), holder.do("take 1500")] == [0, 0]
    with Holder([], commands.environment) as holder:  # and who has no library is suspended from outside
        assert [holder.do("open"), holder.do("take 1500")] == [0, 0]
        assert managed(daemon, holder.pid).memory_limit_bytes == GiB
        wait_for(lambda: task_of(daemon, holder.pid).suspended, "the program to be suspended")
        holder.do("give")
        wait_for(lambda: not task_of(daemon, holder.pid).suspended, "the program to run again")


def test_a_folder_without_room_is_one_line(commands: Commands, daemon: Daemon, regions: Path) -> None:
    regions.write_text("in the way")
    for setting in ("--memory=1G", "--cap=50"):
        line = commands.fails(3, "run", setting, "--", "echo", "started")
        assert "regions cannot be made" in line or "belongs to somebody else" in line
    for words in ([], ["--class", "batch"], ["--no-strict", "--memory", "1G"]):
        done = commands.run("run", *words, "--", "echo", "started")
        assert (done.returncode, done.stdout) == (0, "started\n")
        (line,) = done.stderr.splitlines()
        assert line.endswith("; going on without")


# -- programs that cannot be preloaded --------------------------------------------------------------

PROGRAM = "int main(void) { return 7; }\n"


def built(folder: Path, *options: str) -> Path:
    source, program = folder / "program.c", folder / "program"
    source.write_text(PROGRAM)
    done = subprocess.run([*compiler(*C), *options, str(source), "-o", str(program)], capture_output=True, timeout=100)
    if done.returncode:
        pytest.skip("no static C library here")
    return program


def test_a_static_program_is_said_to_be_out_of_reach_and_runs(
    commands: Commands, daemon: Daemon, tmp_path: Path
) -> None:
    program = built(tmp_path, "-static")
    done = commands.run("run", "--memory", "1G", "--", str(program))
    assert done.returncode == 7
    told = (
        f"{program} is statically linked: its memory cannot be limited from inside; shares and caps work all the same"
    )
    assert done.stderr == f"runlist: {told}\n"
    script = tmp_path / "script"
    script.write_text(f"#!{program}\n")
    script.chmod(0o755)
    assert "is statically linked" in commands.run("run", "--memory", "1G", "--", str(script)).stderr
    assert commands.run("run", "--", str(program)).stderr == ""  # nothing was asked that does not hold


@needs_root
def test_a_setuid_program_is_said_to_be_out_of_reach_and_runs(
    commands: Commands, daemon: Daemon, tmp_path: Path
) -> None:
    program = built(tmp_path)
    os.chown(program, NOBODY, NOBODY)
    for mode in (0o4755, 0o2755):
        program.chmod(mode)
        done = commands.run("run", "--memory", "1G", "--", str(program))
        assert (done.returncode, len(done.stderr.splitlines())) == (7, 1)
        assert "runs with other rights than yours" in done.stderr


# -- processes that nobody may borrow from ----------------------------------------------------------


@pytest.fixture
def denied(commands: Commands, start_daemon: Callable[..., Daemon]) -> Iterator[tuple[Daemon, Run]]:
    """As `run`, with its daemon. Daemon, launcher and program have no capability, as root in a container that is locked
    up, and the program is not dumpable: nobody there may borrow from it.
    """
    commands.options = {"preexec_fn": drop_capabilities}
    daemon = start_daemon()
    with contextlib.ExitStack() as stack:

        def start(*words: str) -> Holder:
            holder = stack.enter_context(Holder([*RUN, *words], commands.environment, **commands.options))
            assert [holder.do("deny"), holder.do("open")] == [0, 0]
            look = [sys.executable, "-c", f"import os; os.readlink('/proc/{holder.pid}/fd/0')"]
            assert b"PermissionError" in subprocess.run(look, capture_output=True, **commands.options).stderr
            return holder

        yield daemon, start


@needs_root
def test_a_process_that_is_denied_to_everybody_is_reached_by_what_it_lends(
    denied: tuple[Daemon, Run], slices: Slices, commands: Commands
) -> None:
    daemon, run = denied
    before = _on_the_gpu(commands)
    holder = run("--cap", "30", "--memory", "2G", "--")
    task = managed(daemon, holder.pid)
    assert (task.reached_by, task.cap_by, task.groups) == ("lent", "driver", 4)
    (task,) = daemon.client.suspend(holder.pid)
    assert task.suspended
    daemon.client.resume(holder.pid)
    daemon.client.set(holder.pid, {"timeslice": "7000"})
    assert set(slices.of(holder.pid)) == {7000}
    assert holder.do("take 500") == 0
    os.kill(holder.pid, signal.SIGKILL)
    wait_for(lambda: not daemon.client.ps(), "the process to be forgotten")
    wait_for(lambda: _on_the_gpu(commands) < before + GiB // 4, "its memory to be free")  # whatever was lent


@needs_root
def test_a_program_that_execs_away_from_what_it_lent_is_let_go(denied: tuple[Daemon, Run], commands: Commands) -> None:
    daemon, run = denied
    before = _on_the_gpu(commands)
    holder = run("--memory", "2G", "--")
    assert holder.do("take 500") == 0
    assert managed(daemon, holder.pid).reached_by == "lent"
    holder.tell("exec")
    wait_for(lambda: not daemon.client.ps(), "the program to be let go")
    assert running(holder.pid)
    wait_for(lambda: _on_the_gpu(commands) < before + GiB // 4, "its memory to be free")


def _on_the_gpu(commands: Commands) -> int:
    """Bytes in use on the GPU."""
    with Holder([], commands.environment) as other:
        assert other.do("open") == 0
        free, total = other.do("info")
        return int(total - free) << 20


@needs_root
def test_where_nothing_is_lent_the_library_keeps_the_cap_and_the_limit(denied: tuple[Daemon, Run]) -> None:
    daemon, run = denied
    holder = run("--cap", "30", "--memory", "2G", "--", "env", "RUNLIST_MESSAGES=/nowhere")
    assert holder.do("take 3000") == OUT_OF_MEMORY
    wait_for(lambda: managed(daemon, holder.pid).cap_by == "process", "the cap to be kept inside")
    task = task_of(daemon, holder.pid)
    assert (task.reached_by, task.groups, task.memory_limit_bytes) == ("", 0, 2 * GiB)
    assert task.why.startswith("not managed: ")
    daemon.client.set(holder.process.pid, {"cap": "max"})
    wait_for(lambda: task_of(daemon, holder.pid).cap_by == "", "the cap to go")


def test_nothing_is_left_of_a_launcher_that_was_killed(run: Run, daemon: Daemon) -> None:
    holder = run("--memory", "1G")
    managed(daemon, holder.pid)
    holder.process.kill()
    assert holder.do("take 1500") == OUT_OF_MEMORY  # the limit holds on
    assert running(holder.pid)

"""The artifact of GPreempt as its commands, with programs that spin, on an emulated GPU of its own: whole runs,
interrupted ones, and programs that die.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bench import ROOT
from bench.papers.common.driving import NEWEST, OPEN, Plan, Served, drive
from bench.papers.common.server import Server, ServerError, Start
from bench.papers.common.task import Task
from bench.papers.gpreempt.cells import Cell, Store
from runlist.arrivals import After, Closed, Periodic
from runlist.proc.process import descendants
from tests.fixtures.daemon import Commands, Daemon, running, wait_for

pytestmark = pytest.mark.timeout(170)

RUN = ["--only", "A", "--seconds", "0.25", "--device", "emulated", "--commit", "none"]


def artifact(environment: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """A command of it, to its end."""
    command = [sys.executable, "-m", "bench.papers.gpreempt", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)


def cell(folder: Path, system: str) -> Cell:
    """What was measured of a system, under workload A."""
    (found,) = (one for one in Store(folder).cells() if one.system == system)
    return found


def test_hello_says_what_works(environment: dict[str, str]) -> None:
    done = artifact(environment, "hello", "--device", "emulated")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "PASS find GPU", "PASS find its channel groups", "PASS set slice", "PASS release from the CPU", "PASS all",
    ]  # fmt: skip
    assert "2048 µs again" in lines[2]


def test_hello_says_what_does_not(environment: dict[str, str]) -> None:
    broken = {**environment, "RUNLIST_EMULATED_GPU": "/nonexistent"}
    done = artifact(broken, "hello", "--device", "emulated")
    assert done.returncode == 1
    assert done.stdout.startswith("FAIL find GPU: ")
    assert "Traceback" not in done.stderr


def test_a_run_is_measured_gone_on_with_and_drawn(environment: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["run", "--out", str(out), *RUN, "--systems", "slicing,sequential,gpreempt-hint,one-process,orion,runlist"]
    planned = artifact(environment, *words, "--plan")
    assert planned.returncode == 0, planned.stderr
    assert "planned: 7 cells" in planned.stdout
    assert not out.exists()
    done = artifact(environment, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("alone", "slicing", "sequential", "gpreempt-hint", "one-process", "orion", "runlist"):
        found = cell(out, name)
        assert found.correct is True, name
        assert found.notes == []
        for mode in (NEWEST, OPEN):
            tasks = found.modes[mode]
            assert set(tasks) == {"lc-vgg19"} | (set() if name == "alone" else {"be-resnet152"})
            assert all(len(task.latency_us) + len(task.late_us) + task.dropped > 0 for task in tasks.values())
            assert all(task.phases_us["infer"] > 0 for task in tasks.values() if task.latency_us)
    assert cell(out, "slicing").timeline
    machine = json.loads((out / "machine.json").read_text())
    assert machine["device"] == "emulated"

    kept = (out / "A" / "runlist-1.json").read_bytes()
    (out / "A" / "slicing-1.json").unlink()
    again = artifact(environment, *(word for word in words if word not in ("--seconds", "0.25")))  # it knows
    assert again.returncode == 0, again.stdout + again.stderr
    assert "going on with the run" in again.stdout
    assert [line.split()[0] for line in again.stdout.splitlines() if "LC mean" in line] == ["time"]
    assert (out / "A" / "runlist-1.json").read_bytes() == kept
    other = artifact(environment, *words, "--seconds", "0.3")
    assert other.returncode == 2
    assert "another window_s" in other.stderr

    drawn = artifact(environment, "plot", "-r", str(out), "-f", "4a,5,tail,timeline", "--document", str(out / "it.md"))
    assert drawn.returncode == 0, drawn.stderr
    assert {path.name for path in (out / "figures").iterdir()} == {
        "4a.png", "5.png", "tail.png", "timeline.png", "index.html", "tasks.csv", "comparison.csv",
    }  # fmt: skip
    assert "measures nothing" in (out / "figures" / "index.html").read_text()
    rows = list(csv.DictReader((out / "figures" / "tasks.csv").open()))
    assert {row["queue"] for row in rows} == {NEWEST, OPEN}
    # On a busy machine one of two may get nothing done in a quarter of a second.
    assert any(float(row["a second"].replace(",", "")) > 0 for row in rows)
    assert "nothing is judged" in (out / "it.md").read_text()


def test_a_program_that_dies_costs_its_own_cell(environment: dict[str, str], tmp_path: Path) -> None:
    wrapper = tmp_path / "wrapper"
    wrapper.write_text('#!/bin/sh\nkind=$1; shift\n[ "$kind" = be ] || exec "$@"\nexec timeout -s KILL 4 "$@"\n')
    wrapper.chmod(0o755)
    out = tmp_path / "out"
    words = ["run", "--out", str(out), "--only", "A", "--seconds", "2", "--device", "emulated", "--commit", "none"]
    done = artifact(environment, *words, "--systems", "alone", "--peer", f"mine={wrapper}")
    assert done.returncode == 1, done.stdout + done.stderr
    dead = cell(out, "mine")
    assert any("be-resnet152 ended early" in note for note in dead.notes), dead.notes
    assert cell(out, "alone").notes == []
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("with_signal", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_all_as_it_was(
    daemon: Daemon, commands: Commands, tmp_path: Path, with_signal: signal.Signals
) -> None:
    daemon.client.use_policy("fair", {})
    out = tmp_path / "out"
    words = ["run", "--out", str(out), *RUN, "--systems", "gpreempt"]
    words[words.index("0.25")] = "1.5"
    run = subprocess.Popen(
        [sys.executable, "-m", "bench.papers.gpreempt", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, env={**commands.environment, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    with run:
        wait_for((out / "A" / "alone-1.json").exists, "the first cell", timeout=60)
        time.sleep(1.5)  # in the second one, with slices of 1 µs
        wait_for(lambda: descendants([run.pid])[run.pid][1:], "its programs")
        started = descendants([run.pid])[run.pid][1:]
        run.send_signal(with_signal)
        assert run.stderr is not None
        error = run.stderr.read()
        assert run.wait(60) == 130
    assert error.strip() == "interrupted: run the same again to go on"
    wait_for(lambda: not any(running(pid) for pid in started), "the end of all that was started", timeout=30)
    assert daemon.client.status().policy == "fair"
    assert daemon.client.ps() == []
    assert [one.system for one in Store(out).cells()] == ["alone"]
    assert all(path.suffix == ".json" for path in out.rglob("*") if path.is_file())


# -- the windows -----------------------------------------------------------------------------------

SLEEPER = """
import time
from bench.papers.common.programs import serving

class Sleeper(serving.Program):
    stream = 0
    def __init__(self, options): self.seconds = options.sleep
    def facts(self): return {"repeats": True}
    def infer(self): time.sleep(self.seconds)
    def synchronize(self): pass
    def check(self): return "same"

serving.main(Sleeper, None, lambda parser: parser.add_argument("--sleep", type=float))
"""


def sleeper(name: str, seconds: float) -> Start:
    """A program that needs no GPU: its requests take so long."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return Start((name,), (sys.executable, "-c", SLEEPER, "--sleep", str(seconds)), environment)


@pytest.fixture
def serving_programs() -> Iterator[Callable[..., dict[str, Server]]]:
    """Starts some of these: `serving_programs(a=0.01)`."""
    with ExitStack() as stack:

        def start(**seconds: float) -> dict[str, Server]:
            servers = {name: stack.enter_context(Server(sleeper(name, each))) for name, each in seconds.items()}
            for server in servers.values():
                server.await_ready(60)
            return servers

        yield start


def a_task(name: str, load: Any, urgent: bool = True) -> Task:
    return Task(name, "spin-1ms", urgent, load)


def measured(servers: dict[str, Server], *tasks: Task, mode: str, seconds: float = 1.0) -> dict[str, Served]:
    return drive(tasks, servers, Plan(seconds, mode, settle_s=0.1))


def test_an_open_queue_is_seen_and_the_newest_hides_it(serving_programs: Callable[..., dict[str, Server]]) -> None:
    servers = serving_programs(a=0.04)
    task = a_task("a", Periodic(50.0))  # twice as many as it can serve
    newest = measured(servers, task, mode=NEWEST)["a"]
    queued = measured(servers, task, mode=OPEN)["a"]

    def latencies(served: Served, since: list[int]) -> list[float]:
        return [(done - start) / 1e6 for start, done in zip(since, served.done, strict=True)]

    assert newest.dropped >= 10
    assert newest.late == []
    assert sorted(latencies(newest, newest.begun))[len(newest.done) // 2] < 80
    assert queued.dropped == 0
    assert len(queued.late) >= 10  # nobody came to them
    waits = latencies(queued, queued.due)
    assert waits[-1] > 200
    assert waits == sorted(waits)
    assert max(queued.late) >= 150e6
    assert servers["a"].end()


def test_a_loop_goes_on_and_who_depends_follows(serving_programs: Callable[..., dict[str, Server]]) -> None:
    servers = serving_programs(a=0.01, b=0.001)
    tasks = [a_task("a", Closed(), urgent=False), a_task("b", After(("a",)))]
    served = measured(servers, *tasks, mode=OPEN)
    assert len(served["a"].done) >= 20
    assert abs(len(served["a"].done) - len(served["b"].done)) <= 3
    assert set(served["a"].checks.values()) == {"same"}
    assert served["a"].phases["infer"] / len(served["a"].done) >= 10e6


def test_who_dies_says_so_and_the_others_go_on(serving_programs: Callable[..., dict[str, Server]]) -> None:
    servers = serving_programs(a=0.001, b=0.001)
    os.kill(servers["b"].pid, signal.SIGKILL)
    tasks = [a_task("a", Periodic(100.0)), a_task("b", Periodic(100.0))]
    served = measured(servers, *tasks, mode=OPEN, seconds=0.5)
    assert served["b"].died == "b ended early (signal 9)"
    assert served["a"].died == ""
    assert len(served["a"].done) >= 40
    assert not servers["b"].end()


def test_who_does_not_start_says_why() -> None:
    for code, said in (("print('hello')", "something else"), ("sys.exit('no weights')", "exit code 1.: no weights")):
        start = Start(("a",), (sys.executable, "-c", f"import sys; {code}"), dict(os.environ))
        with Server(start) as server, pytest.raises(ServerError, match=said):
            server.await_ready(30)


def test_arguments_of_the_programs_are_checked() -> None:
    from bench.papers.common.programs import serving

    parser = argparse.ArgumentParser()
    serving.add_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--hint-us", "-3"])

"""`runlist doctor PID`: what is made of two looks at a process, and how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from runlist import wire
from runlist.advice import look as looking
from runlist.advice.look import look
from runlist.advice.observation import Observation, Pattern, observe
from runlist.advice.table import TABLE, advise
from runlist.client import Client
from runlist.errors import ExitCode, NoPermissionError, NoTargetError
from runlist.views.finding import Finding
from tests.fixtures.fake_daemon import FakeDaemon, gpu_view, status, view

WORK = "work"


def seen(**values: Any) -> Observation:
    """A latency program that is bound by the GPU, and fits."""
    fields: dict[str, Any] = {
        "pid": 42, "gpu": "GPU-1", "command": "serve.py", "task_class": "latency", "policy": "priority", "why": "",
        "enforcement": "memory, queries", "seconds": 2.0, "suspended": False, "in_reach": True, "capped": False,
        "foreground": True, "tells": True, "busy": 0.35, "pauses_per_s": 31.2, "submissions_per_s": 400.0,
        "waits": 0.98, "request_us": 37_234.0, "p99_us": None, "target_p99_us": None, "gives_way": "request",
        "slice_us": None, "switches_share": 0.01, "budget_share": 0.1, "turns_with": 0, "idle": 0.0,
    }  # fmt: skip
    return Observation(**{**fields, **values})


HOST_BOUND: dict[str, Any] = {
    "busy": 0.14, "waits": 0.2, "request_us": None, "gives_way": "slice", "slice_us": 1_523, "switches_share": 0.09,
}  # fmt: skip
UNTOLD: dict[str, Any] = {
    "tells": False, "submissions_per_s": None, "waits": None, "request_us": None, "enforcement": "",
}  # fmt: skip
BEHIND: dict[str, Any] = {"task_class": "batch", "foreground": False, "idle": 0.78}


def said(**values: Any) -> dict[str, tuple[str, str]]:
    """State and sentence by what they are about."""
    return {finding.what: (finding.state, finding.detail) for finding in advise(seen(**values))}


SAID: list[tuple[dict[str, Any], str, str, str]] = [
    ({}, WORK, "ok", "GPU-bound requests of about 37 ms with gaps: the GPU is 35.0 % busy for it, 31 pauses a"),
    ({}, WORK, "ok", "waits for the GPU in 98 % of its work"),
    ({}, "way", "ok", "is off for each of its requests, switches cost 1 %: fits"),
    ({}, "library", "ok", "tells of its requests"),
    ({"request_us": None}, WORK, "ok", "GPU-bound: the GPU is 35.0 % busy"),
    ({"gives_way": ""}, WORK, "ok", "the GPU is 35.0 % busy for it; it waits"),  # no pauses where nobody comes in
    ({"gives_way": ""}, "way", "ok", "nothing has to give way"),
    ({"gives_way": ""}, "way", "ok", "or it is kept off"),  # as by a target that is missed: then there is some
    (HOST_BOUND, WORK, "ok", "host-bound: the GPU is 14.0 % busy for it, 31 pauses a second"),
    (HOST_BOUND, "way", "ok", "has slices of 1.5 ms, switches cost 9 %: fits"),
    ({**HOST_BOUND, "switches_share": 0.3}, "way", "warn", "switches cost 30 %, more than 10 %"),
    ({**HOST_BOUND, "gives_way": "request"}, "way", "warn", "slices would cost the background less"),
    ({"gives_way": "slice", "slice_us": 2_000}, "way", "warn", "slices of 2 ms, and each launch may wait"),
    ({"gives_way": "switch"}, "way", "ok", "at each launch, switches cost 1 %: fits"),
    ({"gives_way": "switch", "switches_share": 0.4}, "way", "warn", "40 %, more than 10 %"),
    ({"gives_way": "switch", "switches_share": 0.4}, "way", "warn", "chooses another way"),
    ({**UNTOLD, "gives_way": "switch", "switches_share": 0.4, "target_p99_us": 5e3}, "way", "warn", "runlist run"),
    (UNTOLD, "library", "warn", "the daemon sees only its turns; start it with `runlist run`"),
    ({**UNTOLD, "enforcement": "not loaded: it is static"}, "library", "warn", "not in it (it is static)"),
    (UNTOLD, WORK, "ok", "the GPU is 35.0 % busy for it, 31 pauses a second"),
    ({"waits": None}, WORK, "warn", "cudaEventQuery"),
    ({"busy": 0.99}, WORK, "warn", "never pauses: the GPU is 99.0 % busy for it, and the background gets nothing"),
    ({"busy": 0.99}, WORK, "warn", "`runlist set 42 cap=80`"),
    ({"busy": 0.99, "capped": True}, WORK, "ok", "never pauses"),
    ({"busy": 0.99, "foreground": False, "task_class": "batch"}, WORK, "ok", "never pauses"),
    ({"busy": 0.0, "submissions_per_s": 0.0}, WORK, "warn", "did nothing on the GPU for 2 s"),
    ({"busy": 0.0, "submissions_per_s": None}, WORK, "warn", "did nothing"),
    ({"task_class": "normal"}, "class", "warn", "is normal, which is background beside latency tasks"),
    ({"task_class": "normal"}, "class", "warn", "`runlist set 42 class=latency`"),
    ({"task_class": "batch", "foreground": False}, "class", "ok", "to protect it: `runlist set 42 class=latency`"),
    ({"policy": "fair", "gives_way": ""}, "way", "warn", "policy fair lets nobody give way"),
    ({"task_class": "deadline", "gives_way": ""}, "way", "ok", "its budget before all others"),
    ({**BEHIND, "turns_with": 4}, "turns", "warn", "turns with 4 others, and has left the GPU idle for 78 %"),
    ({**BEHIND, "turns_with": 1}, "turns", "warn", "turns with another one,"),
    ({"target_p99_us": 5e3}, "target", "warn", "a target of 5 ms and reports no latencies"),
    ({"target_p99_us": 5e3, "p99_us": 7_123.0}, "target", "warn", "p99 7.1 ms, over its 5 ms"),
    ({"target_p99_us": 5e3, "p99_us": 4_900.0}, "target", "ok", "p99 4.9 ms of 5 ms"),
    ({"in_reach": False, "why": "not managed: no\x1b right"}, "state", "warn", "not managed: no? right"),
    ({"suspended": True}, "state", "warn", "`runlist resume 42`"),
    ({"suspended": True, "why": "its tree is over 8 GiB"}, "state", "warn", "suspended: its tree is over 8 GiB"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "what", "state", "words"), SAID)
def test_what_is_said_of_a_program(values: dict[str, Any], what: str, state: str, words: str) -> None:
    found = said(**values)
    assert found[what][0] == state
    assert words in found[what][1]


def test_of_what_is_kept_off_nothing_else_is_said() -> None:
    assert list(said(suspended=True)) == list(said(in_reach=False, why="no right")) == ["state"]


def test_a_background_task_hears_nothing_of_ways_and_libraries() -> None:
    assert set(said(foreground=False, task_class="batch", **UNTOLD)) == {"class", WORK}


@pytest.mark.parametrize(
    "values",
    [
        {"turns_with": 0},
        {"turns_with": 3, "policy": "fair"},
        {"turns_with": 3, "gives_way": ""},
        {"turns_with": 3, "idle": 0.2},
        {"turns_with": 3, "idle": None},
    ],
)
def test_turns_that_are_used_or_are_none_are_not_spoken_of(values: dict[str, Any]) -> None:
    assert "turns" not in said(**{**BEHIND, **values})


def test_every_row_is_said_of_some_program() -> None:
    """And fits into a line, whatever was seen."""
    rows = {(what, row.says) for what, rows in TABLE.items() for row in rows if row.says}
    used = set()
    for values, *_ in SAID:
        program = seen(**values)
        for what, table in TABLE.items():
            row = next((row for row in table if row.when(program)), None)
            if row is not None:
                used.add((what, row.says))
        assert all("{" not in finding.detail and "\n" not in finding.detail for finding in advise(program))
    assert rows <= used


# -- two looks -------------------------------------------------------------------------------------


def test_what_was_seen_between_two_looks() -> None:
    before = view(
        task_class="latency", gpu_seconds_worked=1.0, switches=100, submissions=1_000, seconds_waited=0.5,
        seconds_launching=0.1,
    )  # fmt: skip
    after = view(
        task_class="latency", gpu_seconds_worked=1.7, switches=162, submissions=1_800, seconds_waited=1.48,
        seconds_launching=0.12, request_us=37_000.0,
    )  # fmt: skip
    gpu = gpu_view(gives_way="request", switches_share=0.01, switch_budget_share=0.1)
    one = observe(before, after, gpu, 2.0, foreground=True)
    assert one.busy == pytest.approx(0.35)
    assert (one.pauses_per_s, one.submissions_per_s) == (31.0, 400.0)
    assert one.waits == pytest.approx(0.98)
    assert (one.gives_way, one.switches_share, one.budget_share, one.tells) == ("request", 0.01, 0.1, True)
    assert one.pattern is Pattern.GPU_BOUND
    untold = observe(view(), view(usage_source=""), None, 2.0, foreground=False)
    assert (untold.busy, untold.pauses_per_s, untold.waits, untold.tells, untold.gives_way) == (None,) * 3 + (False, "")
    # A process may start anew, or write any number.
    nonsense = observe(view(submissions=9, seconds_waited=1e9), view(submissions=0, seconds_waited=0.0), gpu, 2.0,
                       foreground=True)  # fmt: skip
    assert (nonsense.submissions_per_s, nonsense.waits, nonsense.busy) == (0.0, None, 0.0)


def test_a_process_and_all_below_it_are_looked_at(fake: FakeDaemon) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    own = {"task_class": "normal", "gpu": gpu_view().gpu}
    fake.tasks = [view(pid=os.getpid(), **own), view(pid=child.pid, task_class="latency"), view(pid=1)]
    fake.status = status(gpus=[gpu_view(gives_way="switch", switches_share=0.02, switch_budget_share=0.1)])
    with Client.open() as client:
        first, second = look(client, os.getpid(), 0.05)
        (only,) = look(client, child.pid, 0.05)
    assert {first.pid, second.pid} == {os.getpid(), child.pid}
    assert only.pid == child.pid
    assert only.foreground
    assert not next(one for one in (first, second) if one.task_class == "normal").foreground
    child.communicate(b"\n")


def test_with_whom_a_task_takes_turns(fake: FakeDaemon) -> None:
    held = {"gpu_seconds_held": 4.0, "gpu_seconds_idle": 3.0}
    classes = {1: "latency", 2: "batch", 3: "normal", 5: "batch", 6: "batch"}
    fake.tasks = [view(pid=pid, task_class=each) for pid, each in classes.items()]
    fake.tasks += [view(pid=os.getpid(), task_class="batch", together=[6], **held), view(pid=7, gpu="GPU-9")]
    fake.tasks[3] = view(pid=5, task_class="batch", suspended=True)
    with Client.open() as client:
        (one,) = look(client, os.getpid(), 0.0)
    assert (one.turns_with, one.idle) == (2, 0.75)
    fake.tasks = [view(pid=os.getpid(), task_class="latency", **held), *fake.tasks]
    with Client.open() as client:
        (one, *_) = look(client, os.getpid(), 0.0)
    assert one.turns_with == 0


def test_who_ends_meanwhile(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.tasks = [view(pid=os.getpid())]

    def pass_time(seconds: float) -> None:
        fake.tasks = []

    monkeypatch.setattr(looking.time, "sleep", pass_time)
    with Client.open() as client, pytest.raises(NoTargetError, match=f"process {os.getpid()} ended"):
        look(client, os.getpid())


def test_whose_process_it_is(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.tasks = []
    monkeypatch.setattr(looking, "owner_of", lambda pid: 1234)
    monkeypatch.setattr(looking.os, "geteuid", lambda: 1000)
    with Client.open() as client, pytest.raises(NoPermissionError, match="belongs to user 1234"):
        look(client, os.getpid(), 0)


# -- the command -----------------------------------------------------------------------------------


def doctor(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "runlist.cli", "doctor", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_command_in_text_and_json(fake: FakeDaemon) -> None:
    pid = os.getpid()
    fake.tasks = [view(pid=pid, task_class="latency", command="serve [red]\x1b")]
    fake.status = status(gpus=[gpu_view(gives_way="switch", switches_share=0.02, switch_budget_share=0.1)])
    done = doctor(str(pid))
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = done.stdout.splitlines()
    assert head == f"process {pid} (serve [red]?), latency, GPU 4e3db026"
    assert [row.split()[:2] for row in rows] == [
        ["ok", "class:"],
        ["warn", "work:"],
        ["warn", "library:"],
        ["ok", "way:"],
    ]
    told = json.loads(doctor(str(pid), "--json").stdout)
    (task,) = told["tasks"]
    assert (told["pid"], told["exit_code"], task["pattern"]) == (pid, 0, "idle")
    assert task["observed"]["gives_way"] == "switch"
    assert [Finding(**finding).what for finding in task["findings"]] == ["class", "work", "library", "way"]


@pytest.mark.parametrize(
    ("pid", "line"),
    [("2147483600", "does not exist"), (str(os.getppid()), "is not managed: attach it first")],
)
def test_a_process_that_is_not_managed_is_one_line(fake: FakeDaemon, pid: str, line: str) -> None:
    fake.tasks = []
    done = doctor(pid, "--json")
    assert done.returncode == ExitCode.NO_TARGET
    assert done.stderr.startswith(f"runlist: process {pid} {line}")
    assert done.stderr.count("\n") == 1
    assert json.loads(done.stdout)["exit_code"] == ExitCode.NO_TARGET


def test_a_daemon_that_refuses_or_is_not_there(fake: FakeDaemon) -> None:
    fake.answers[wire.ListTasks] = wire.Failure("no right", ExitCode.NO_PERMISSION)
    done = doctor(str(os.getpid()))
    assert (done.returncode, done.stderr) == (3, "runlist: no right\n")
    fake.close()
    done = doctor(str(os.getpid()))
    assert done.returncode == ExitCode.NO_TARGET
    assert done.stderr.startswith("runlist: no daemon runs")

"""Reading traces: what each format says, and what is wrong with bad ones."""

from __future__ import annotations

import json
import re
import time
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runlist.arrivals import After, Closed, Listed, Periodic, Poisson
from runlist.errors import UsageError
from runlist.model import Cap, Deadline, TaskClass
from runlist.sim import Trace, builtin_traces, load_trace
from runlist.sim.workload import TenantSpec

TENANT = '[[tenant]]\nname = "a"\nkernel_us = 10\n'
ROUND = "".join(
    f'[[tenant]]\nname = "{name}"\nkernel_us = 10\nload = {load}\n'
    for name, load in (
        ("a", '{ kind = "closed" }'),
        ("b", '{ kind = "after", names = ["a", "d"] }'),
        ("c", '{ kind = "after", names = ["b"] }'),
        ("d", '{ kind = "after", names = ["c"] }'),
    )
)
"""Three who wait for each other in a circle."""


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def tenants(trace: Trace) -> list[TenantSpec]:
    return list(trace.tenants)


def refusal(folder: Path, name: str, text: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_trace(write(folder, name, text))
    message = str(caught.value)
    assert "\n" not in message
    assert name in message
    return message


def outcome(path: Path) -> str:
    """What is said of a file; nothing of a good one."""
    try:
        load_trace(str(path))
    except UsageError as error:
        return str(error)
    return ""


# -- synthetic -------------------------------------------------------------------------------------


def test_the_ready_traces_say_what_they_are() -> None:
    traces = builtin_traces()
    assert {"two-batch", "four-batch", "weights-3-1", "service-and-batch", "eight-batch-one-service"} <= set(traces)
    assert {"deadline-mix", "token-loop", "eager-llm", "resnet"} <= set(traces)
    for name, about in traces.items():
        assert about
        assert load_trace(name).name == name
    assert load_trace("two-batch", 3.0).seconds == 3.0


def test_a_scenario_with_everything(tmp_path: Path) -> None:
    trace = load_trace(
        write(
            tmp_path,
            "all.toml",
            """
            about = "all there is"
            seconds = 7
            gpus = 3
            tenants_per_gpu = 5
            [[tenant]]
            name = "late"
            class = "latency"
            weight = 250
            cap = 30
            p99_us = 500
            group = "web"
            gpu = 2
            kernel_us = [10, 20.5]
            load = { kind = "poisson", hz = [[0, 10], [2, 0], [3, 50]] }
            hint_us = 200
            segment = 4
            start = 1.5
            end = 6
            timeslice_us = 1000
            [[tenant]]
            name = "job"
            count = 2
            kernel_us = 100
            kernels = 3
            gap_us = 7
            step_gap_us = 2.5
            tells = true
            cap = { quota_us = 20000, period_us = 50000, burst_us = 1000 }
            [[tenant]]
            name = "cam"
            deadline = { budget_us = 1000, period_us = 10000 }
            kernel_us = 900
            load = { kind = "periodic", period_us = 10000, phase_us = 500 }
            [[tenant]]
            name = "then"
            kernel_us = 5
            load = { kind = "after", names = ["cam"] }
            [[tenant]]
            name = "listed"
            kernel_us = 5
            host_us = 90
            tells = false
            load = { kind = "trace", times_ms = [1, 2.5] }
            """,
        )
    )
    assert (trace.seconds, trace.gpus, trace.tenants_per_gpu) == (7.0, 3, 5)
    one, two, cam, then, listed, late = tenants(trace)  # in order of their start
    assert late == TenantSpec(
        "late", TaskClass.LATENCY, 250, Cap.of_percent(30), None, 500.0, "web", 2,
        Poisson([(0.0, 10.0), (2.0, 0.0), (3.0, 50.0)]), (10.0, 20.5), 0.0, 1.5, 6.0, 200.0, 4, 1000,
    )  # fmt: skip
    assert [one.name, two.name, one.kernel_us, one.gap_us] == ["job-1", "job-2", (100.0,) * 3, 7.0]
    assert (one.cap, one.load, one.task_class) == (Cap(20_000, 50_000, 1_000), Closed(), TaskClass.NORMAL)
    assert (one.step_gap_us, one.host_us, one.tells) == (two.step_gap_us, two.host_us, two.tells) == (2.5, 0.0, True)
    assert (listed.step_gap_us, listed.host_us, listed.tells) == (0.0, 90.0, False)
    assert (cam.task_class, cam.deadline) == (TaskClass.DEADLINE, Deadline(1_000, 10_000))
    assert cam.load == Periodic(100.0, 0.0005)
    assert (then.load, listed.load) == (After(("cam",)), Listed((0.001, 0.0025)))


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("cap = 33.333333333333336", {"cap": Cap(33_333)}),
        ('cap = "30%"', {"cap": Cap(30_000)}),
        ('cap = "20ms/50ms"\nburst = "1ms"', {"cap": Cap(20_000, 50_000, 1_000)}),
        ('cap = "30000 100000"', {"cap": Cap(30_000)}),
        ('cap = "max"', {}),
        ('deadline = "1ms/10ms"', {"deadline": Deadline(1_000, 10_000), "task_class": TaskClass.DEADLINE}),
        ('deadline = "none"', {}),
        ('p99 = "0.5ms"', {"target_p99_us": 500.0}),
        ("timeslice = 1000", {"timeslice_us": 1_000}),
        ('timeslice = "2ms"', {"timeslice_us": 2_000}),
        ('timeslice = "auto"', {}),
    ],
)
def test_a_tenant_takes_the_words_of_set(tmp_path: Path, words: str, asked: dict[str, Any]) -> None:
    (tenant,) = tenants(load_trace(write(tmp_path, "words.toml", f"{TENANT}{words}\n")))
    assert tenant == TenantSpec("a", kernel_us=tenant.kernel_us, load=tenant.load, **asked)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "tenant is missing"),
        ("tenant = []", "give at least one"),
        ("tenant = 3", "take a list"),
        ("tenant = [3]", "tenant 1: take a table"),
        ("[[tenant]\n", "line 1"),
        ("a = 1\nb = \n", "line 2"),
        ("[[tenant]]\nkernel_us = 1\n", "name is missing"),
        ('[[tenant]]\nname = "a"\n', "kernel_us is missing"),
        ('[[tenant]]\nname = ""\nkernel_us = 1\n', "name:"),
        (TENANT + TENANT, "two tenants are called a"),
        (TENANT + "wieght = 3\n", "wieght"),
        (TENANT + "weight = 0\n", "a weight is 1 to 10000"),
        (TENANT + "weight = 10001\n", "a weight is 1 to 10000"),
        (TENANT + "weight = 1.5\n", "weight: take a whole number"),
        (TENANT + "weight = true\n", "weight: take a whole number"),
        (TENANT + "cap = 101\n", "a cap is 1 to 100 %"),
        (TENANT + "cap = nan\n", "tenant 1 (a): cap=nan: take a percentage"),
        (TENANT + 'cap = "half"\n', "cap=half: take a percentage"),
        (TENANT + "cap = true\n", "cap: take a table"),
        (TENANT + "cap = [30]\n", "cap: take a table"),
        (TENANT + 'burst = "5ms"\n', "burst=5ms: a burst goes with a cap"),
        (TENANT + 'deadline = "5ms"\n', "deadline=5ms: take BUDGET/PERIOD"),
        (TENANT + "deadline = 5\n", "deadline=5: take BUDGET/PERIOD"),
        (TENANT + 'deadline = "1ms/10ms"\nclass = "batch"\n', "class=batch and deadline=1ms/10ms exclude"),
        (TENANT + 'class = "batch"\np99_us = 500\n', "a target has no effect for class batch"),
        (TENANT + 'cap = 5\ndeadline = "1ms/10ms"\n', "the cap allows 5 %"),
        (TENANT + 'p99 = "soon"\n', "p99=soon: take a number and a unit"),
        (TENANT + 'timeslice = "1.5us"\n', "timeslice=1.5us: take whole microseconds"),
        (TENANT + 'p99 = "1ms"\np99_us = 1000\n', "no such field: p99_us"),
        (TENANT + "timeslice = { us = 5 }\n", "no such field: timeslice"),
        (TENANT + "cap = { quota_us = 5, period_us = 1 }\n", "period"),
        (TENANT + "cap = { quota = 5 }\n", "quota_us is missing"),
        (TENANT + "deadline = { budget_us = 5, period_us = 1 }\n", "deadline"),
        (TENANT + 'class = "deadline"\n', "class=deadline takes a budget and a period"),
        (TENANT + 'class = "fast"\n', "class: take deadline, latency, normal, batch, not fast"),
        (TENANT + "count = 0\n", "count: take 1"),
        (TENANT + "count = 10000000000\n", "count: take 1"),
        (TENANT + "kernels = 0\n", "kernels: take 1"),
        (TENANT + "kernels = 1000000000\n", "kernels: take 1"),
        (TENANT.replace("10", "0"), "kernel_us: take"),
        (TENANT.replace("10", "-3"), "kernel_us: take"),
        (TENANT.replace("10", "inf"), "kernel_us: take"),
        (TENANT.replace("10", "[1, 'x']"), "kernel_us: take numbers"),
        (TENANT.replace("10", "[]"), "kernels: a request has"),
        (TENANT + "gap_us = -1\n", "gap_us"),
        (TENANT + "step_gap_us = -1\n", "step_gap_us: take 0"),
        (TENANT + "host_us = inf\n", "host_us: take 0"),
        (
            TENANT + "host_us = 1\nstep_gap_us = 1\n",
            "(a): step_gap_us, host_us: a host waits for each",
        ),
        (TENANT + "wait_every = 2\n", "wait_every: only a host that launches ahead"),
        (TENANT + "host_us = 1\nwait_every = 0\n", "wait_every: take 1"),
        (TENANT + "tells = 1\n", "tells: take true or false, not 1"),
        (TENANT + "start = -1\n", "start"),
        (TENANT + "start = 5\nend = 5\n", "end: give a time after"),
        (TENANT + "gpu = -1\n", "gpu"),
        (TENANT + "p99_us = 0\n", "p99_us"),
        (TENANT + "hint_us = 5\n", "hint_us: only an open loop"),
        (TENANT + "timeslice_us = 0\n", "timeslice_us"),
        (TENANT + "load = 3\n", "load: take a table"),
        (TENANT + 'load = { kind = "fractal" }\n', "kind: take closed, periodic"),
        (TENANT + 'load = { kind = "closed", hz = 3 }\n', "no such field: hz"),
        (TENANT + 'load = { kind = "poisson", hz = 0 }\n', "hz: give more than 0"),
        (TENANT + 'load = { kind = "poisson", hz = -1 }\n', "hz: take"),
        (TENANT + 'load = { kind = "poisson", hz = 1e9 }\n', "hz: take"),
        (TENANT + 'load = { kind = "poisson", hz = [] }\n', "hz: the first step"),
        (TENANT + 'load = { kind = "periodic", hz = 5, period_us = 1000 }\n', "period_us: hz says how often, too"),
        (TENANT + 'load = { kind = "poisson", hz = [[0, 1], [0, 2]] }\n', "ascend"),
        (TENANT + 'load = { kind = "poisson", hz = [[0, 1, 2]] }\n', "hz: take a number, or a list"),
        (TENANT + 'load = { kind = "periodic", period_us = 0 }\n', "period_us: take more"),
        (TENANT + 'load = { kind = "trace", times_ms = [2, 1] }\n', "in order"),
        (TENANT + 'load = { kind = "trace", times_ms = [] }\n', "at least one"),
        (TENANT + 'load = { kind = "after", names = ["b"] }\n', "no tenant b"),
        (TENANT + 'load = { kind = "after", names = [] }\n', "at least one"),
        (TENANT + 'load = { kind = "after", names = ["a"] }\n', "tenant a: load: it comes after itself, and so never"),
        (ROUND, "tenant b: load: it comes after itself"),
        (TENANT + "false_alarms = 0.5\n", "false_alarms: only a tenant that tells"),
        ("seconds = 0\n" + TENANT, "seconds: take"),
        ("gpus = 0\n" + TENANT, "gpus: take"),
        ("gpus = 1.5\n" + TENANT, "gpus: take a whole number"),
        ("colour = 1\n" + TENANT, "no such field: colour"),
    ],
)
def test_what_is_wrong_with_a_scenario(tmp_path: Path, text: str, named: str) -> None:
    assert named in refusal(tmp_path, "bad.toml", text)


def test_who_comes_too_late_is_told(tmp_path: Path) -> None:
    path = str(write(tmp_path, "late.toml", "seconds = 9\n" + TENANT + "start = 5\n"))
    assert load_trace(path).notes == ()
    assert load_trace(path, 5.0).notes == ("1 tenant would come after the end (5 s)",)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for name in ("none.toml", "none.json", "none.csv"):
        with pytest.raises(UsageError, match="No such file"):
            load_trace(str(tmp_path / name))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        load_trace(str(tmp_path / "binary.toml"))
    (tmp_path / "marked.json").write_bytes(b"\xef\xbb\xbf{}")  # the mark that some editors put first
    with pytest.raises(UsageError, match="time"):
        load_trace(str(tmp_path / "marked.json"))
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(UsageError, match="directory"):
        load_trace(str(tmp_path / "folder.json"))
    with pytest.raises(UsageError, match=r"take .*two-batch"):
        load_trace("no-such")
    with pytest.raises(UsageError, match="cluster trace"):
        load_trace("two-batch", skip=3.0)


def test_the_examples_of_the_documentation_can_be_read(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()
    for kind in ("toml", "json"):
        (example,) = re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)
        assert len(tenants(load_trace(write(tmp_path, f"example.{kind}", example)))) >= 2


# -- arrivals --------------------------------------------------------------------------------------


def test_arrivals_follow_the_steps_of_their_rate() -> None:
    steps = [(0.0, 100.0), (1.0, 0.0), (2.0, 1000.0)]
    for load in (Periodic(steps), Poisson(steps)):
        times = list(islice(load.arrivals(10.0, Random(1)), 600))
        assert times == sorted(times)
        assert sum(10 <= time < 11 for time in times) == pytest.approx(100, abs=30)
        assert not any(11 <= time < 12 for time in times)
        assert sum(12 <= time < 12.4 for time in times) == pytest.approx(400, abs=60)
    assert list(islice(Periodic(2.0, 0.25).arrivals(1.0, Random(1)), 3)) == [1.25, 1.75, 2.25]
    assert list(Periodic([(0.0, 10.0), (0.35, 0.0)], 0.0).arrivals(0.0, Random(1))) == pytest.approx([0, 0.1, 0.2, 0.3])
    assert list(Listed((0.5, 0.5, 2.0)).arrivals(1.0, Random(1))) == [1.5, 1.5, 3.0]


# -- DISB ------------------------------------------------------------------------------------------


def disb(**changes: object) -> str:
    document: dict[str, object] = {
        "time": 4,
        "kernel_us": {"net": [100, 200], "be": 3000, "other": 50},
        "tasks": [
            {
                "id": "rt",
                "load": {"type": "periodic", "priority": 0, "frequency": 100},
                "client": {"model_name": "net"},
            },
            {"id": "mid", "load": {"type": "periodic", "priority": 1, "frequency": 5}, "client": {"model_name": "net"}},
            {"id": "be", "load": {"type": "continuous"}, "client": {"name": "x", "model_name": "unknown"}},
            {"id": "rand", "load": {"type": "poisson", "frequency": 30}, "client": {"model_name": "other"}},
            {"id": "tr", "load": {"type": "trace", "trace": [0, 150, 258]}, "client": {"model_name": "other"}},
            {
                "id": "dep",
                "load": {"type": "dependent", "prev_task_ids": ["rt", "tr"]},
                "client": {"model_name": "net"},
            },
        ],
    }
    return json.dumps({**document, **changes})


def test_a_disb_file(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path, "d.json", disb()))
    assert trace.seconds == 4
    by_name = {tenant.name: tenant for tenant in trace.tenants}
    assert {name: tenant.task_class.value for name, tenant in by_name.items()} == {
        "rt": "latency", "mid": "normal", "be": "batch", "rand": "latency", "tr": "latency", "dep": "latency",
    }  # fmt: skip
    assert by_name["rt"].kernel_us == by_name["dep"].kernel_us == (100.0, 200.0)
    assert by_name["be"].kernel_us == (3000.0,)
    assert by_name["rt"].load == Periodic(100.0)
    assert by_name["be"].load == Closed()
    assert by_name["rand"].load == Poisson(30.0)
    assert by_name["tr"].load == Listed((0.0, 0.15, 0.258))
    assert by_name["dep"].load == After(("rt", "tr"))


def test_the_older_form_of_disb(tmp_path: Path) -> None:
    tasks = [{"strategy": {"type": "continuous"}, "client": {"name": "hello"}, "class": "latency", "weight": 7}]
    (tenant,) = load_trace(write(tmp_path, "old.json", disb(tasks=tasks, kernel_us={"hello": 5}))).tenants
    assert (tenant.name, tenant.task_class, tenant.weight) == ("hello", TaskClass.LATENCY, 7)


def one_task(load: object, **more: object) -> str:
    return disb(tasks=[{"id": "be", "load": load, **more}])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "line 1"),
        ('{\n"time": 3,\n}', "line 3"),
        ("[]", "take a table"),
        ("[" * 100_000, "bad.json"),
        ("{}", "time is missing"),
        (disb(time=-1), "time: take"),
        (disb(time="x"), "time: take a number"),
        (disb(tasks=[]), "at least one"),
        (disb(tasks={}), "tasks: take a list"),
        (disb(tasks=[1]), "task 1: take a table"),
        (disb(tasks=[{"id": "be"}]), "strategy is missing"),
        (disb(kernel_us=3), "kernel_us: take a table"),
        (disb(kernel_us={}), 'task rt: kernel_us has no length for it: add "rt" or "net"'),
        (disb(kernel_us={"net": "x", "be": 1, "other": 1}), "net: take a number"),
        (one_task({"type": "magic"}), "type: take continuous, periodic"),
        (one_task({"type": "periodic"}), "frequency is missing"),
        (one_task({"type": "periodic", "frequency": 0}), "hz: give more than 0"),
        (one_task({"type": "poisson", "frequency": None}), "frequency: take a number"),
        (one_task({"type": "trace", "trace": ["a"]}), "trace: take numbers"),
        (one_task({"type": "trace", "trace": [3, 2]}), "in order"),
        (one_task({"type": "dependent", "prev_task_ids": ["ghost"]}), "no task ghost"),
        (one_task({"type": "dependent", "prev_task_ids": ["be"]}), "task be: prev_task_ids: it comes after itself"),
        (one_task({"type": "continuous"}, **{"class": "deadline"}), "class: take latency"),
        (one_task({"type": "continuous"}, weight=-1), "a weight is"),
        (disb(tasks=[{"id": "be", "load": {"type": "continuous"}}] * 2), "two tasks have the id be"),
    ],
)
def test_what_is_wrong_with_a_disb_file(tmp_path: Path, text: str, named: str) -> None:
    assert named in refusal(tmp_path, "bad.json", text)


WORDS = ["id", "load", "client", "type", "frequency", "trace", "weight", "class", "be", "prev_task_ids"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(time=st.just(3) | JSON, kernels=st.just({"be": 1}) | JSON, tasks=st.lists(JSON, max_size=3) | JSON)
def test_no_disb_file_is_too_strange(
    tmp_path_factory: pytest.TempPathFactory, time: object, kernels: object, tasks: object
) -> None:
    path = tmp_path_factory.getbasetemp() / "strange.json"
    path.write_text(json.dumps({"time": time, "kernel_us": kernels, "tasks": tasks}))
    assert "\n" not in outcome(path)


# -- both ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", "gpus = " + "1" * 5000 + "\n" + TENANT),
        ("a.toml", f"seconds = {'9' * 400}\n" + TENANT),
        ("a.toml", '[[tenant]]\nname = "a"\nkernel_us = [1, ' + "9" * 400 + "]\n"),
        ("a.toml", f"tenants_per_gpu = {'9' * 400}\n" + TENANT),
        ("a.toml", f"{TENANT}deadline = {{ budget_us = {'9' * 400}, period_us = 20000 }}\n"),
        ("a.toml", "about = " + "[" * 3000),
        ("a.json", '{"time": ' + "1" * 5000 + "}"),
        ("a.json", '{"time": ' + "9" * 400 + ', "tasks": []}'),
        ("a.json", '{"a":' * 3000),
    ],
)
def test_numbers_and_nesting_beyond_all_bounds(tmp_path: Path, name: str, text: str) -> None:
    refusal(tmp_path, name, text)


def test_many_tasks_are_read_in_no_time(tmp_path: Path) -> None:
    tasks = [{"id": str(number), "load": {"type": "continuous"}} for number in range(60_000)]
    lengths = {str(number): 5 for number in range(60_000)}
    began = time.thread_time()
    trace = load_trace(write(tmp_path, "a.json", json.dumps({"time": 1, "kernel_us": lengths, "tasks": tasks})))
    assert len(tenants(trace)) == len(tasks)
    assert time.thread_time() - began < 10

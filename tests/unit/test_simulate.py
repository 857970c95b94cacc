"""`runlist simulate`: whole simulations, their results, and the command."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from runlist.arrivals import After, Closed, Listed, Periodic, Poisson
from runlist.cli import main
from runlist.errors import UsageError
from runlist.model import Cap, Deadline, TaskClass
from runlist.policies import PolicySpec
from runlist.sim import Outcome, Trace, builtin_traces, load_trace, simulate
from runlist.sim.recorder import jain
from runlist.sim.result import SimulationResult, TenantResult
from runlist.sim.workload import TenantSpec

BATCH = TenantSpec("batch", TaskClass.BATCH, kernel_us=(3_100.0,) * 4, gap_us=400.0)
PRIORITY = PolicySpec("priority")


def tenant(name: str, **settings: object) -> TenantSpec:
    return TenantSpec(**{**BATCH.__dict__, "name": name, **settings})  # type: ignore[arg-type]


def run(policy: str, *tenants: TenantSpec, seconds: float = 3.0, gpus: int = 1) -> SimulationResult:
    return simulate(Trace("test", seconds, tenants, gpus), PolicySpec(policy)).result


def by_name(result: SimulationResult) -> dict[str, TenantResult]:
    return {one.name: one for one in result.tenants}


# -- what always holds -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(builtin_traces()))
@pytest.mark.parametrize("policy", ["none", "priority"])
def test_time_is_conserved_on_every_ready_trace(name: str, policy: str) -> None:
    trace = load_trace(name, 2.0)
    result = simulate(trace, PolicySpec(policy), gpus=2).result
    for gpu in result.gpus:
        parts = (gpu.work, gpu.lost, gpu.idle, gpu.gaps, gpu.empty)
        assert sum(parts) == pytest.approx(1, abs=1e-5)
        assert all(part >= 0 for part in parts)
        here = [one for one in result.tenants if one.gpu == gpu.gpu]
        held = sum(one.share * one.seconds for one in here) / result.seconds
        assert held == pytest.approx(gpu.work + gpu.lost, abs=1e-5)
    for one in result.tenants:
        assert 0 <= one.work_share <= one.share <= 1
        if one.latency_us is not None:
            assert 0 < one.latency_us.p50 <= one.latency_us.p99 <= one.latency_us.p999 <= one.latency_us.max
    assert result.notes == list(trace.notes)
    assert result.refused == []


@pytest.mark.parametrize("trace", ["deadline-mix", "resnet"])
def test_the_same_seed_gives_the_same_result_to_the_last_byte(trace: str) -> None:
    command = [sys.executable, "-m", "runlist.cli", "simulate", "--trace", trace, "--seconds", "2", "--json"]
    outputs = [
        subprocess.run(
            [*command, "--seed", seed], env={**os.environ, "PYTHONHASHSEED": hashes}, capture_output=True, check=True
        ).stdout
        for seed, hashes in (("7", "1"), ("7", "2"), ("8", "1"))
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0] != outputs[2]
    assert json.loads(outputs[0])["seed"] == 7


def test_tenants_are_spread_over_gpus_and_kept_where_they_belong() -> None:
    result = run("none", *(tenant(f"t{index}") for index in range(4)), tenant("fixed", gpu=2), gpus=3)
    assert [one.gpu for one in result.tenants] == [0, 1, 2, 0, 2]
    with pytest.raises(UsageError, match=r"tenant fixed runs on GPU 2, and there are 2: --gpus"):
        run("none", tenant("fixed", gpu=2), gpus=2)


@pytest.mark.parametrize("seconds", [0, -1.0, math.nan, math.inf, 1e7])
def test_a_simulation_that_would_not_end_is_not_begun(seconds: float) -> None:
    with pytest.raises(UsageError, match=r"seconds: take 0\.001 to 1000000"):
        simulate(load_trace("two-batch"), PolicySpec("none"), seconds=seconds)
    with pytest.raises(UsageError, match="seconds: take"):
        load_trace("two-batch", seconds)


@pytest.mark.parametrize("gpus", [0, -1])
def test_a_simulation_has_a_gpu(gpus: int) -> None:
    with pytest.raises(UsageError, match="gpus: take 1 or more"):
        simulate(load_trace("two-batch"), PolicySpec("none"), gpus=gpus)


def test_tenants_come_go_and_wait_for_room() -> None:
    specs = [tenant(f"t{index}", start_s=0.0, end_s=1.0) for index in range(3)]
    outcome = simulate(Trace("room", 3.5, specs, tenants_per_gpu=1), PolicySpec("none"))
    assert [one.seconds for one in outcome.result.tenants] == [1.0, 1.0, 1.0]  # one after the other
    assert outcome.result.gpus[0].work == pytest.approx(3 / 3.5 * 0.967, rel=0.02)
    assert [one.first for one in outcome.series] == [0, 1, 2]
    assert outcome.series[0].shares == pytest.approx([0.96], abs=0.02)
    full = simulate(Trace("room", 1.0, [tenant("a"), tenant("b")], tenants_per_gpu=1), PolicySpec("none")).result
    assert [(one.name, one.reason) for one in full.refused] == [("b", "found no room until the end")]


# -- loads -----------------------------------------------------------------------------------------


def test_every_kind_of_load() -> None:
    result = by_name(
        run(
            "none",
            tenant("closed", kernel_us=(100.0,), gap_us=900.0, gpu=0),
            tenant("periodic", kernel_us=(100.0,), load=Periodic(200.0), gpu=1),
            tenant("poisson", kernel_us=(100.0,), load=Poisson(200.0), gpu=2),
            tenant("listed", kernel_us=(100.0,), load=Listed((0.5, 1.0, 99.0)), gpu=3),
            tenant("after", kernel_us=(100.0,), load=After(("listed", "periodic")), gpu=0),
            gpus=4,
        )
    )
    assert result["closed"].requests == pytest.approx(3 / 1.015e-3, rel=0.15)
    assert result["periodic"].requests == pytest.approx(600, abs=1)
    assert result["poisson"].requests == pytest.approx(600, rel=0.15)
    assert result["listed"].requests == result["after"].requests == 2
    assert [result[name].unfinished for name in ("periodic", "listed", "after")] == [0, 0, 0]


@pytest.mark.parametrize(
    ("load", "arrivals_ms"),
    [
        ("hz = 50, phase_us = 4000", [4 + 20 * number for number in range(10)]),
        ("period_us = 20000, phase_us = 4000", [4 + 20 * number for number in range(10)]),
        ("hz = [[0, 50], [0.1, 100]], phase_us = 0", [0, 20, 40, 60, 80, *range(100, 200, 10)]),
    ],
)
def test_a_periodic_load_in_a_file_comes_when_it_says(tmp_path: Path, load: str, arrivals_ms: list[float]) -> None:
    """All the forms that the documents name."""
    path = tmp_path / "own.toml"
    path.write_text(
        f'seconds = 0.2\n[[tenant]]\nname = "camera"\nkernel_us = 100\nload = {{ kind = "periodic", {load} }}\n'
    )
    trace = load_trace(str(path))
    (spec,) = trace.tenants
    assert isinstance(spec.load, Periodic)
    arrivals = spec.load.arrivals(0.0, random.Random(1))
    assert [round(1e3 * next(arrivals), 3) for _ in arrivals_ms] == arrivals_ms
    assert [one.requests for one in simulate(trace, PolicySpec("none")).result.tenants] == [len(arrivals_ms)]
    words = [sys.executable, "-m", "runlist.cli", "simulate", "--trace", str(path), "--policy", "none", "--json"]
    shown = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    assert [one["requests"] for one in shown["tenants"]] == [len(arrivals_ms)]


def test_latency_counts_from_the_intended_arrival() -> None:
    """Overload: whoever counts from the launch sees nothing of the queue."""
    (one,) = run("none", tenant("slow", kernel_us=(10_000.0,), load=Periodic(150.0))).tenants
    assert one.latency_us is not None
    assert one.latency_us.max == pytest.approx(1e6, rel=0.1)  # a third of three seconds' arrivals waits
    assert one.unfinished == pytest.approx(150, rel=0.05)
    assert one.relative == pytest.approx(2 / 3, rel=0.05)


def test_a_target_that_cannot_be_kept_is_missed_also_by_requests_that_never_end() -> None:
    (one,) = run("none", tenant("stuck", kernel_us=(30e6,), load=Periodic(1.0), target_p99_us=1e5)).tenants
    assert (one.requests, one.latency_us) == (0, None)
    assert one.slo_missed == one.slo_windows >= 2
    (kept,) = run("none", tenant("fine", kernel_us=(100.0,), load=Periodic(100.0), target_p99_us=1e5)).tenants
    assert (kept.slo_missed, kept.slo_windows) == (0, 3)


def test_deadline_misses_are_counted() -> None:
    spec = tenant(
        "cam",
        task_class=TaskClass.DEADLINE,
        deadline=Deadline(9_000, 10_000),
        kernel_us=(12_000.0,),
        load=Periodic(50.0),
    )
    (one,) = run("priority", spec).tenants
    assert one.deadline_misses == one.requests > 100


def test_fairness_is_of_those_who_compete() -> None:
    assert jain([1, 1, 1]) == 1
    assert jain([3, 0, 0]) == pytest.approx(1 / 3)
    assert jain([0, 0]) == 1
    equal = run("none", tenant("a"), tenant("b"), tenant("seldom", load=Periodic(1.0), kernel_us=(10.0,)))
    assert equal.fairness == pytest.approx(1, abs=1e-3)
    weighted = run("none", tenant("a", weight=300), tenant("b"))
    assert weighted.fairness == pytest.approx((1 / 3 + 1) ** 2 / (2 * (1 / 9 + 1)), abs=0.01)
    grouped = run("none", tenant("a", group="g"), tenant("b", group="g"), tenant("c"))
    assert grouped.fairness == pytest.approx(0.9, abs=0.01)
    assert run("none", tenant("a")).fairness is None


# -- policies --------------------------------------------------------------------------------------


def own(folder: Path, body: str) -> str:
    path = folder / "mine.py"
    path.write_text(
        "from runlist.model import *\nfrom runlist.policies import *\n"
        f"class Mine(Policy):\n    summary = 'x'\n{body}\nPOLICY = Mine\n"
    )
    return str(path)


def test_a_policy_of_ones_own(tmp_path: Path) -> None:
    path = own(
        tmp_path,
        """
    def __init__(self, options):
        self.slice_us = int(options["slice_us"])
    def decide(self, tasks, now):
        return Decision({task.key: Share(self.slice_us * task.weight) for task in tasks})
""",
    )
    spec = PolicySpec(path, {"slice_us": "50"})
    result = simulate(Trace("t", 5.0, [tenant("a", weight=300), tenant("b")]), spec).result
    one, two = result.tenants
    assert one.share / (one.share + two.share) == pytest.approx(0.75, abs=0.02)
    assert result.controls["set_slice"] == 2
    with pytest.raises(UsageError, match="slice_us"):
        simulate(Trace("t", 5.0, [tenant("a")]), PolicySpec(path))


def test_what_a_policy_is_told(tmp_path: Path) -> None:
    path = own(
        tmp_path,
        """
    seen = []
    def on_event(self, event, now):
        self.seen.append((now, event))
    def decide(self, tasks, now):
        self.seen.append((now, {task.command: task for task in tasks}))
        return Decision({}, 0.1, frozenset(task.key for task in tasks if now > 1.9))
    def admit(self, task, tasks):
        return f"no room beside {len(tasks)}" if task.command == "unwanted" else None
""",
    )
    trace = Trace(
        "told",
        2.0,
        [
            tenant("job", end_s=1.5),
            tenant("hinting", kernel_us=(100.0,), load=Periodic(10.0, 0.05), hint_us=5_000.0, target_p99_us=1e3),
            tenant("marking", kernel_us=(100.0,), load=Periodic(10.0, 0.0), segment=4),
            tenant("unwanted", start_s=0.5),
        ],
    )
    from runlist.sim.machine import Machine

    machine = Machine(trace, PolicySpec(path), 1, 2.0, 1)
    machine.run()
    seen = machine.gpus[0].scheduler.loop._policy.below.below.below.seen  # type: ignore[attr-defined]
    times = [now for now, _ in seen]
    assert times == sorted(times)
    kinds: dict[str, list[object]] = {}
    for _, what in seen:
        kinds.setdefault(type(what).__name__, []).append(what)
    assert [event.task.command for event in kinds["Appear"]] == ["job", "hinting", "marking"]
    (gone,) = kinds["Vanish"]
    assert len(kinds["Tick"]) > 10
    hints = [event.in_s for event in kinds["Hint"]]
    assert len(hints) >= 18
    assert max(hints) == pytest.approx(0.005)
    assert [event.priority for event in kinds["Segment"]][:4] == [4, None, 4, None]
    assert len(kinds["Report"]) >= 18
    assert max(event.latency_s for event in kinds["Report"]) < 0.02
    assert any(tasks["marking"].segment == 4 for tasks in kinds["dict"])
    last = kinds["dict"][-1]
    assert sorted(last) == ["hinting", "marking"]
    usage = last["hinting"].usage
    assert usage.turns > 10
    assert 0 < usage.busy_s <= usage.held_s
    job = max(tasks["job"].usage.held_s for tasks in kinds["dict"] if "job" in tasks)
    assert gone.usage.held_s >= job > 0
    told = sum(sum(event.held_s.values()) for event in kinds["Used"])
    assert told == pytest.approx(gone.usage.held_s + sum(task.usage.held_s for task in last.values()), abs=0.02)
    assert [(spec.name, why) for spec, why in machine.refused] == [("unwanted", "no room beside 3")]
    assert machine.controller.calls["preempt"] >= 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            (
                "    def decide(self, tasks, now):\n        if now > 1: raise KeyError('oops')\n"
                "        return Decision({}, 0.1)"
            ),
            "line 6: KeyError('oops')",
        ),
        ("    def decide(self, tasks, now):\n        return 42", "one: AttributeError"),  # that is not in its file
        ("    def decide(self, tasks, now):\n        return Decision({}, 'soon')", "ValueError"),
        (
            "    def on_event(self, event, now):\n        1 / 0\n    def decide(self, tasks, now): return Decision({})",
            "Zero",
        ),
    ],
)
def test_a_policy_that_fails_is_dropped_for_the_default_one(tmp_path: Path, body: str, said: str) -> None:
    outcome = simulate(Trace("t", 2.0, [tenant("a"), tenant("b")]), PolicySpec(own(tmp_path, body)))
    (note,) = outcome.result.notes
    assert note.startswith("GPU-0: policy ")
    assert "was dropped for the default one" in note
    assert said in note
    assert outcome.result.gpus[0].policy == "priority"
    assert outcome.result.utilisation > 0.9


def test_a_policy_that_would_livelock_is_put_right_and_told(tmp_path: Path) -> None:
    path = own(
        tmp_path,
        "    def decide(self, tasks, now):\n        return Decision({task.key: Share(1) for task in tasks}, 0.01)",
    )
    result = simulate(Trace("t", 2.0, [tenant("a"), tenant("b")]), PolicySpec(path)).result
    (note,) = result.notes
    assert "would stop each other" in note
    assert result.utilisation > 0.5


def prepared(announce_budget: str, false_alarms: float = 0.0) -> dict[str, TenantResult]:
    """A service that prepares its requests for 2 ms, beside a batch job."""
    service = tenant(
        "service", task_class=TaskClass.LATENCY, kernel_us=(1_000.0,), load=Periodic(40.0, 0.0), tells=True,
        prepare_us=2_000.0, false_alarms=false_alarms,
    )  # fmt: skip
    trace = Trace("prepared", 10.0, [service, tenant("job", task_class=TaskClass.BATCH, kernel_us=(5_000.0,))])
    policy = PolicySpec("priority", options={"announce_budget": announce_budget})
    return by_name(simulate(trace, policy).result)


def test_a_request_that_is_announced_finds_the_background_off() -> None:
    unheard, heard = prepared("0"), prepared("0.02")
    late, soon = (one["service"].latency_us for one in (unheard, heard))
    assert late is not None
    assert soon is not None
    assert 3_000 < soon.p99 < late.p99, "nobody has to be switched away when it launches"
    assert heard["job"].requests_per_s > 0.75 * unheard["job"].requests_per_s


def test_false_alarms_cost_the_background_no_more_than_their_budget() -> None:
    right, wrong = prepared("0.02"), prepared("0.02", 1.0)
    assert wrong["job"].requests_per_s > 0.93 * right["job"].requests_per_s


def test_a_capped_tenant_needs_the_daemon() -> None:
    """Nothing holds a cap but the policy: under the driver alone it means nothing."""
    (free,) = run("none", tenant("a", cap=Cap.of_percent(30))).tenants
    assert free.share > 0.9
    (capped,) = run("priority", tenant("a", cap=Cap.of_percent(30)), seconds=5.0).tenants
    assert capped.share == pytest.approx(0.30, abs=0.03)


def test_a_closed_loop_with_nothing_to_pause_for() -> None:
    (one,) = run("none", tenant("busy", load=Closed(), gap_us=0.0)).tenants
    assert one.share == pytest.approx(0.998, abs=0.002)


# -- the command -----------------------------------------------------------------------------------

BROKEN = (
    ("decide(self, tasks, now): return 42", "AttributeError"),
    ("decide(self, tasks, now): return Decision({task.key: 'fast' for task in tasks})", "'fast' is no share"),
    ("decide(self, tasks, now): return Decision({task.key: Share(until=float('nan')) for task in tasks})", "no share"),
    ("decide(self, tasks, now): return Decision({}, float('nan'))", "nan is no time"),
    ("decide(self, tasks, now): raise SystemExit(7)", "SystemExit(7)"),
    ("on_event(self, event, now): raise KeyError('oops')", "KeyError('oops')"),
    ("admit(self, task, tasks): raise SystemExit(7)", "SystemExit(7)"),
    ("admit(self, task, tasks): return type('Rude', (), {'__str__': None})()", "TypeError"),
)
"""A method, and what is said of it."""


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["simulate", *words])
    captured = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, captured.out, captured.err


def test_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "--trace", "deadline-mix", "--seconds", "2")
    assert code == 0
    for word in ("camera", "deadline", "chat", "windows", "Jain", "events per CPU second", "driver controls"):
        assert word in out
    code, out, _ = command(capsys, "--policy", "none", "--trace", "two-batch", "--seconds", "1")
    assert "cap %" not in out  # nobody has one
    code, out, _ = command(capsys, "--list-traces")
    assert (code, len(out.splitlines())) == (0, len(builtin_traces()))


def test_json_has_everything_and_the_speed_is_said_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command(capsys, "--trace", "service-and-batch", "--seconds", "1", "--json")
    result = json.loads(out)
    assert code == 0
    assert set(result) == set(SimulationResult.__struct_fields__)
    assert [one["name"] for one in result["tenants"]] == ["service", "batch"]
    assert "events per CPU second" in err


@pytest.mark.parametrize(("method", "said"), BROKEN)
def test_a_broken_policy_file_is_dropped_and_the_simulation_goes_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, method: str, said: str
) -> None:
    body = "" if method.startswith("decide") else "    def decide(self, tasks, now): return Decision({})\n"
    path = own(tmp_path, f"{body}    def {method}")
    words = ("--policy", path, "--trace", "two-batch", "--seconds", "1")
    code, out, err = command(capsys, *words)
    (note,) = " ".join(out.split()).split("note: ")[1:]  # the terminal folds it
    assert (code, err) == (0, "")
    assert note.startswith(f"GPU-0: policy {path} was dropped for the default one: ")
    assert said in note
    assert "utilisation 9" in out
    code, out, err = command(capsys, *words, "--json")
    result = json.loads(out)
    assert (code, len(result["notes"]), result["gpus"][0]["policy"]) == (0, 1, "priority")
    assert result["utilisation"] > 0.9
    assert "Traceback" not in err


def test_what_a_policy_prints_is_no_part_of_the_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = own(tmp_path, "    def decide(self, tasks, now):\n        print('decides')\n        return Decision({})")
    words = ("--policy", path, "--trace", "two-batch", "--seconds", "0.1")
    code, out, err = command(capsys, *words, "--json")
    assert (code, json.loads(out)["gpus"][0]["policy"]) == (0, path)
    assert "decides\n" in err
    assert "decides\n" in command(capsys, *words)[1]


def test_a_policy_file_that_leaves_while_it_is_loaded_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = own(tmp_path, "    def __init__(self, options): raise SystemExit(7)\n    def decide(self, tasks, now): ...")
    code, out, err = command(capsys, "--policy", path, "--trace", "two-batch", "--seconds", "1")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "SystemExit" in err


def test_pictures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "p.png"
    words = ("--trace", "eight-batch-one-service", "--seconds", "2", "--gpus", "2", "--plot")
    assert command(capsys, *words, str(picture))[0] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    code, _, err = command(capsys, *words, str(tmp_path / "no" / "p.png"))
    assert (code, len(err.splitlines())) == (2, 1)
    code, _, err = command(capsys, *words, str(tmp_path / "p.strange"))
    assert (code, len(err.splitlines())) == (2, 1)


def test_without_what_draws_no_picture_is_begun(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as where it is not installed
    code, out, err = command(capsys, "--trace", "two-batch", "--plot", str(tmp_path / "p.png"))
    assert (code, out) == (5, "")
    assert err == "runlist: --plot needs matplotlib: pip install 'runlist[plot]'\n"


def test_a_cluster_trace_from_end_to_end(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    times = [(1000 + 7 * index, 1300 + 11 * index, 25 * (index % 6)) for index in range(40)]
    rows = "".join(f"j,worker,1.0,Terminated,{start}.0,{end}.0,600.0,29.3,{plan}.0,T4\n" for start, end, plan in times)
    path = tmp_path / "pai_task_table.csv"
    path.write_text(rows)
    code, out, _ = command(capsys, "--trace", str(path), "--gpus", "4", "--json")
    result = json.loads(out)
    assert code == 0
    assert len(result["gpus"]) == 4
    assert {one["cap_percent"] for one in result["tenants"]} == {25.0, 50.0, 75.0, 62.5, None}
    assert any("60 s of the trace in one" in note for note in result["notes"])


@pytest.mark.parametrize(
    "words",
    [
        ["--trace", "nothing"], ["--policy", "nothing"], ["--policy", "nothing.py"], ["--seconds", "0"],
        ["--seconds", "nan"], ["--option", "x"], ["--option", "x=1"], ["--compress", "2"], ["--skip", "-1"],
        ["--policy", "none", "--option", "a=b"],
    ],
)  # fmt: skip
def test_a_wrong_word_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    code, _, err = command(capsys, *words)
    assert code == 2
    (line,) = err.splitlines()
    assert line.startswith("runlist: ")


def test_its_speed_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Not a bound: machines differ. A million events a minute is 16,667 a second."""
    outcome: Outcome = simulate(load_trace("eight-batch-one-service", 20.0), PRIORITY)
    assert outcome.result.events > 20_000
    with capsys.disabled():
        print(f"\nsimulated {outcome.events_per_cpu_s:,.0f} events per CPU second")

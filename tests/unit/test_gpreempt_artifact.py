"""The artifact of GPreempt: workloads, plans, what is made of cells, and the verdicts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bench.harness.mps import Mps
from bench.harness.results import FOLDER
from bench.papers.common import pictures
from bench.papers.common.driving import NEWEST, OPEN
from bench.papers.common.program import Program
from bench.papers.common.programs.serving import Request, request_of
from bench.papers.common.programs.turns import Turn
from bench.papers.common.results import TaskResult
from bench.papers.gpreempt import claims, command, config, document, figures, page, planning, published, tables
from bench.papers.gpreempt.analysis import Results
from bench.papers.gpreempt.bursty import Bursty
from bench.papers.gpreempt.catalogue import PROGRAMS
from bench.papers.gpreempt.cells import Cell, Standalone, Store
from bench.papers.gpreempt.systems import SYSTEMS, chosen
from bench.papers.gpreempt.systems.system import Place
from runlist.arrivals import After, Closed, Listed, Periodic, Poisson
from runlist.errors import UsageError
from runlist.sim.traces import load_trace
from tests.fixtures.daemon import wait_for

ROOT = Path(__file__).parents[2]


def place(folder: Path) -> Place:
    """Where nothing is started."""
    return Place(emulated=True, environment={}, folder=folder, mps=Mps(), client=None)


# -- workloads -------------------------------------------------------------------------------------


def test_the_workloads_are_as_published() -> None:
    found = {name: config.named(name) for name in (*config.PUBLISHED, *config.MICRO)}
    counts = {name: (len(one.urgent), len(one.best_effort)) for name, one in found.items()}
    assert {name: counts[name] for name in config.PUBLISHED} == {
        "A": (1, 1), "B": (1, 1), "C": (1, 5), "D": (5, 5), "E": (5, 5), "REAL": (5, 5), "Y": (1, 1), "Z": (1, 4),
    }  # fmt: skip
    rates = {name: {config.rate_of(task.load) for task in one.tasks} for name, one in found.items()}
    assert rates["A"] == {100}
    assert rates["B"] == {220}
    assert rates["D"] == rates["E"] == {20, 100}
    assert rates["Y"] == {100, 150}
    assert {type(task.load) for task in found["E"].urgent} == {Poisson}
    assert {type(task.load) for task in found["Z"].best_effort} == {Closed}
    assert {one.seconds for one in found.values()} == {60}
    assert all(one.note for one in found.values())
    named = {task.program for one in found.values() for task in one.tasks}
    assert named == set(PROGRAMS)


def test_bursts_have_their_rate_and_are_the_same_each_time() -> None:
    load = Bursty(20, 4, 0.15, 0.8, 600, seed=7)
    times = load.listed().at_s
    assert times == load.listed().at_s
    assert times != Bursty(20, 4, 0.15, 0.8, 600, seed=8).listed().at_s
    assert len(times) / 600 == pytest.approx(20, rel=0.15)
    by_second = [sum(second <= time < second + 1 for time in times) for second in range(600)]
    mean = sum(by_second) / len(by_second)
    spread = sum((count - mean) ** 2 for count in by_second) / len(by_second)
    assert spread > 2 * mean  # of Poisson arrivals they are equal


def test_the_simulator_reads_the_same_files(tmp_path: Path) -> None:
    whole = json.loads((config.FOLDER / "A.json").read_text())
    whole["kernel_us"] = {"vgg19": 2360, "resnet152": 5000}
    path = tmp_path / "A.json"
    path.write_text(json.dumps(whole))
    simulated = list(load_trace(path).tenants)
    ours = config.read(path)
    assert [one.load for one in simulated] == [task.load for task in ours.tasks] == [Periodic(100.0)] * 2
    first = [next(one.load.arrivals(0.0, Random(3))) for one in ours.tasks if isinstance(one.load, Periodic)]
    assert first == [next(one.load.arrivals(0.0, Random(3))) for one in simulated if isinstance(one.load, Periodic)]


def a_task(**changes: Any) -> dict[str, Any]:
    """A task of a file."""
    task = {"id": "lc", "load": {"type": "periodic", "frequency": 10}, "client": {"model_name": "vgg19", "priority": 0}}
    return {**task, **changes}


def test_every_load_of_disb_is_read(tmp_path: Path) -> None:
    loads: list[dict[str, Any]] = [
        {"type": "periodic", "frequency": 10, "priority": 0},
        {"type": "continuous"},
        {"type": "poisson", "frequency": 3},
        {"type": "trace", "trace": [0, 5, 5, 10]},
        {"type": "dependent", "prev_task_ids": ["t0", "t2"]},
    ]
    tasks = [a_task(id=f"t{place}", load=load, client={"model_name": "vgg19"}) for place, load in enumerate(loads)]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"time": 5, "tasks": tasks}))
    found = config.named(str(path))
    assert [task.load for task in found.tasks] == [
        Periodic(10.0), Closed(), Poisson(3.0), Listed((0.0, 0.005, 0.005, 0.01)), After(("t0", "t2")),
    ]  # fmt: skip
    assert [task.kind for task in found.tasks] == ["LC", "BE", "LC", "LC", "LC"]


def whole(**changes: Any) -> dict[str, Any]:
    """A file of one task."""
    return {"time": 1, "tasks": [a_task(**changes)]}


def with_load(**load: Any) -> dict[str, Any]:
    """A file of one task with this load."""
    return whole(load=load)


BURSTY = {"type": "bursty", "frequency": 1, "burst_ms": 1, "seconds": 1, "seed": 1}
ENDLESS = {**BURSTY, "frequency": 9e4, "seconds": 3600, "peak": 1, "busy": 0.5}

BAD: dict[str, tuple[Any, str]] = {
    "unknown field": (whole(speed=3), "task lc: no such field: speed"),
    "unknown field of the load": (with_load(type="poisson", frequency=1, b=2), "load: no such field: b"),
    "negative rate": (with_load(type="periodic", frequency=-5), "load: hz: take 0"),
    "no rate": (with_load(type="periodic", frequency=0), "give more than 0"),
    "trace out of order": (with_load(type="trace", trace=[5, 1]), "give them in order"),
    "no such program": (whole(client={"model_name": "alexnet"}), "model_name: no program 'alexnet'"),
    "no such task before": (with_load(type="dependent", prev_task_ids=["x"]), "prev_task_ids: no task x"),
    "no such priority": (whole(client={"model_name": "vgg19", "priority": -1}), "priority: take 0"),
    "the same id": ({"time": 1, "tasks": [a_task(), a_task()]}, "two tasks have the id lc"),
    "nobody urgent": (whole(load={"type": "continuous"}, client={"model_name": "vgg19"}), "priority is 0"),
    "no tasks": ({"time": 1}, "tasks is missing"),
    "no time": ({"time": 0, "tasks": [a_task()]}, "time: take 0.1 to 3600"),
    "bursts beyond all time": (with_load(**BURSTY, peak=9, busy=0.5), "load: peak: take 1 to 2"),
    "bursts without end": (with_load(**ENDLESS), "frequency times seconds: take 0 to 200000"),
    "not JSON": ('{"time": 1,\n  "tasks": [,]}', "line 2"),
    "too deep": ("[" * 100_000, "nested too deeply"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_workload_is_refused_by_file_and_place(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written, said = BAD[name]
    path = tmp_path / "mine.json"
    path.write_text(written if isinstance(written, str) else json.dumps(written))
    out = tmp_path / "out"
    assert command.main(["run", "--only", str(path), "--out", str(out), "--device", "emulated"]) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert said in error
    assert len(error.splitlines()) == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "Q"], "no workload 'Q'"),
        (["--only", "A,A"], "the same name"),
        (["--only", "gone.json"], "No such file"),
        (["--systems", "warp"], "no system 'warp'"),
        (["--peer", "xsched"], "NAME=PATH"),
        (["--peer", "runlist=/bin/true"], "none of ours"),
    ],
)
def test_bad_words_are_refused(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["run", "--out", str(tmp_path / "out"), "--device", "emulated", *words]) == 2
    assert said in capsys.readouterr().err


# -- what runs where -------------------------------------------------------------------------------


def refused(workloads: list[config.Workload], folder: Path) -> dict[tuple[str, str], str]:
    """As on a GPU where all programs are."""
    there = Place(emulated=False, environment={}, folder=folder, mps=Mps(), client=None)
    return {
        (workload.name, name): why
        for workload in workloads
        for name, system in SYSTEMS.items()
        if (why := system.refuses(workload, there))
    }


@pytest.mark.parametrize("quick", [False, True])
def test_a_run_fits_into_its_time(quick: bool, tmp_path: Path) -> None:
    names = planning.QUICK_WORKLOADS if quick else (*config.PUBLISHED, *config.MICRO)
    workloads = [config.named(name) for name in names]
    budget_s = planning.QUICK_S if quick else planning.FULL_S
    schedule = planning.schedule(
        workloads, SYSTEMS, refused(workloads, tmp_path), rounds=1, window_s=None, budget_s=budget_s,
        most_s=planning.QUICK_WINDOW_S if quick else planning.WINDOW_S, start_s=planning.START_S,
    )  # fmt: skip
    assert schedule.planned_s <= budget_s
    assert schedule.window_s >= (0.5 if quick else 10)
    measured = {(group.workload.name, system.name) for group in schedule.groups for system in group.systems}
    for name in names:
        assert {(name, one) for one in ("alone", "slicing", "gpreempt", "gpreempt-hint", "runlist")} <= measured


def test_neighbours_share_their_processes(tmp_path: Path) -> None:
    workloads = [config.named("A"), config.named("C")]
    schedule = planning.schedule(
        workloads, SYSTEMS, refused(workloads, tmp_path), rounds=2, window_s=1, most_s=1, budget_s=1e6, start_s=1
    )
    names = [(group.round, group.workload.name, group.name) for group in schedule.groups]
    assert len(names) == len(set(names))
    assert (1, "A", "gpreempt") not in names  # one best-effort program is a process as any other
    assert (2, "C", "gpreempt") in names


def test_the_rule_has_one_best_effort_context(tmp_path: Path) -> None:
    for name in (*config.PUBLISHED, *config.MICRO):
        workload = config.named(name)
        starts = SYSTEMS["gpreempt"].starts(workload, place(tmp_path))
        best_effort = {task.name for task in workload.best_effort}
        assert sum(bool(best_effort & set(start.tasks)) for start in starts) == 1
        assert {task for start in starts for task in start.tasks} == {task.name for task in workload.tasks}


def test_only_who_can_stop_between_blocks_is_asked_to(tmp_path: Path) -> None:
    there = Place(emulated=False, environment={}, folder=tmp_path, mps=Mps(), client=None)
    assert "spin-200us" in SYSTEMS["blocks"].refuses(config.named("B1"), there)
    assert SYSTEMS["blocks"].refuses(config.named("A"), there) == ""  # between the layers of a network
    assert SYSTEMS["blocks"].refuses(config.named("Z"), there) == ""
    assert "resnet152" in SYSTEMS["reset"].refuses(config.named("A"), there)
    assert "weather" in SYSTEMS["reset"].refuses(config.named("Y"), there)  # it is not idempotent


def test_a_gpu_too_small_for_all_programs_is_told_so(tmp_path: Path) -> None:
    there = place(tmp_path)
    workloads = [config.named("A"), config.named("D")]
    left_out = command.refused(workloads, {"slicing": SYSTEMS["slicing"]}, there, memory_gb=8)
    assert set(left_out) == {("D", "slicing")}
    assert "take about 15 GB, and the GPU has 8" in left_out["D", "slicing"]


def test_a_program_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = Program("spin", modules=("no_such_module",))
    monkeypatch.setitem(PROGRAMS, "vgg19", lacking)
    there = Place(emulated=False, environment={}, folder=tmp_path, mps=Mps(), client=None)
    left_out = command.refused([config.named("B0")], {"slicing": SYSTEMS["slicing"]}, there, memory_gb=80)
    assert left_out == {("B0", "slicing"): "vgg19 needs the Python module no_such_module"}
    monkeypatch.setitem(PROGRAMS, "vgg19", Program("no_such_program"))
    left_out = command.refused([config.named("B0")], {"slicing": SYSTEMS["slicing"]}, there, memory_gb=80)
    assert left_out == {("B0", "slicing"): "vgg19 needs the program no_such_program"}


def test_networks_that_are_critical_are_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROGRAMS, "vgg19", Program("dnn", ("vgg19",)))
    workload = config.named("C")
    urgent, *_, same = workload.tasks
    assert (urgent.program, same.program) == ("vgg19", "vgg19")
    there = Place(emulated=False, environment={}, folder=tmp_path, mps=Mps(), client=None)
    assert there.process(urgent).words[-2:] == ("vgg19", "--graph")
    assert there.process(same).words[-1] == "vgg19"
    assert (there.kind(urgent), there.kind(same)) == ("vgg19-graph", "vgg19")
    there.eager = True
    assert "--graph" not in there.process(urgent).words
    assert "--graph" not in place(tmp_path).process(urgent).words  # a kernel that spins is none


def test_a_peer_is_a_program_in_front_of_each_command(tmp_path: Path) -> None:
    systems = chosen("slicing", [f"mine={tmp_path / 'wrapper'}"])
    assert list(systems) == ["alone", "slicing", "mine"]
    workload = config.named("A")
    assert "no program that can be run" in systems["mine"].refuses(workload, place(tmp_path))
    (tmp_path / "wrapper").touch(mode=0o755)
    assert systems["mine"].refuses(workload, place(tmp_path)) == ""
    starts = systems["mine"].starts(workload, place(tmp_path))
    assert [start.words[:2] for start in starts] == [(str(tmp_path / "wrapper"), kind) for kind in ("lc", "be")]


def test_requests_say_in_which_ways_they_are_served() -> None:
    assert request_of({"id": 1, "due": None}) == Request(1, None, None)
    everything, nothing = request_of({"id": 1}), request_of({"id": 1, "with": []})
    assert everything.wants("turn")
    assert everything.lead_us(200) == 200
    assert not nothing.wants("turn")
    assert nothing.lead_us(200) is None
    assert request_of({"id": 1, "with": ["hint:50"]}).lead_us(200) == 50


def test_the_urgent_take_their_turn_before_others(tmp_path: Path) -> None:
    path = tmp_path / "turn"
    order: list[str] = []
    holder = Turn(path, urgent=False)
    holder.__enter__()

    def take(name: str, urgent: bool) -> threading.Thread:
        turn = Turn(path, urgent=urgent)

        def body() -> None:
            with turn:
                order.append(name)
                time.sleep(0.02)

        thread = threading.Thread(target=body)
        thread.start()
        return thread

    def waiting() -> int:
        of = f":{path.stat().st_ino} "
        return sum("->" in line and of in line for line in Path("/proc/locks").read_text().splitlines())

    threads = [take("BE", urgent=False)]
    wait_for(lambda: waiting() == 1)
    threads += [take("LC", urgent=True), take("LC", urgent=True)]
    wait_for(lambda: waiting() == 3)
    assert order == []
    holder.__exit__()
    for thread in threads:
        thread.join(60)
    assert sorted(order) == ["BE", "LC", "LC"]
    # The one that waited on the lock may have it first, as it did before they came; it gives it back at once.
    assert order[-1] == "BE"


# -- what is made of it ----------------------------------------------------------------------------


def task(kind: str, latencies: list[float], **more: Any) -> TaskResult:
    """What a window gave."""
    return TaskResult(kind, "vgg19", 1.0, len(latencies), latencies, {"infer": 90.0}, **more)


def cells(added_us: float, rate: int, workloads: tuple[str, ...] = config.PUBLISHED) -> Iterator[Cell]:
    """Of all workloads: LC takes 1 ms alone, and so much more beside BE; NP and time slicing have 100 BE requests."""
    for name in workloads:
        for system in ("alone", "one-process", "slicing", "gpreempt", "gpreempt-hint", "runlist"):
            managed = system in ("gpreempt", "gpreempt-hint", "runlist")
            latency = 1000.0 + (0 if system == "alone" else added_us if managed else 5000.0)
            both = {"lc": task("LC", [latency] * 100)}
            if system != "alone":
                both["be"] = task("BE", [50.0] * (rate if managed else 100))
            modes = {NEWEST: both, OPEN: both}
            yield Cell(name, system, SYSTEMS[system].title, 1, modes, correct=True, timeline=[("lc", 0.0, 500.0)])


def results(added_us: float = 30.0, rate: int = 97, device: str = "nvidia", **more: Any) -> Results:
    """Of a whole run."""
    machine = {"device": device, "gpus": ["NVIDIA H200"], "driver": "580", "runlist": "0", "commit": "c", "window_s": 1}
    return Results(machine, list(cells(added_us, rate, **more)), {"vgg19": Standalone(1000.0, 900.0, {"infer": 90.0})})


def words(found: Results) -> list[str]:
    return [one.word for one in claims.verdicts(found) if "block-level" not in one.claim]


def test_claims_are_judged_by_what_was_measured() -> None:
    assert set(words(results())) == {claims.HOLDS}
    assert claims.FAILS in words(results(added_us=4000, rate=10))
    some = [one for one in claims.verdicts(results(workloads=("A", "C"))) if one.target == "≤ 40 µs in each"]
    assert [one.word for one in some] == [claims.IN_PART] * 2
    assert all("A 30, C 30 µs" in one.measured for one in some)


def test_a_ratio_of_eight_is_judged_by_all_eight() -> None:
    rows = [one for one in claims.verdicts(results(workloads=("A", "C"))) if "mean of the eight" in one.claim]
    assert {one.word for one in rows} == {claims.UNMEASURED}


def test_block_level_preemption_is_judged_by_the_newest_kept_run_on_a_gpu(tmp_path: Path) -> None:
    def keep(date: str, device: str, stop_us: float) -> None:
        figures = [
            {"benchmark": "blocks", "name": "stop from here, p99 of 9", "value": stop_us, "target": 120.0},
            {"benchmark": "blocks", "name": "stop from there, p99 of 9", "value": stop_us + 5, "target": 120.0},
            {"benchmark": "blocks", "name": "stop of another kind", "value": 9999.0},
            {"benchmark": "blocks", "name": "overhead unstopped, one", "value": 0.02, "target": 0.03},
        ]
        a_run = json.loads(min(FOLDER.glob("*-nvidia-pairs.json")).read_text())
        a_run.update(date=date, device=device, figures=figures)
        (tmp_path / f"{date}.json").write_text(json.dumps(a_run))

    assert claims.kept_worst("stop ", tmp_path) is None
    keep("2026-01-01T00:00:00+00:00", "nvidia", 300)
    keep("2026-01-02T00:00:00+00:00", "nvidia", 80)
    keep("2026-01-03T00:00:00+00:00", "emulated", 10)
    assert claims.kept_worst("stop ", tmp_path) == 85
    assert claims.kept_worst("overhead unstopped", tmp_path) == 0.02


def test_nothing_is_judged_by_an_emulated_gpu_or_without_a_run() -> None:
    assert set(words(results(device="emulated"))) == {claims.UNMEASURED}
    assert set(words(Results())) == {claims.UNMEASURED}


def test_wrong_results_and_dead_programs_are_told() -> None:
    found = results()
    found.cells[1].modes = {NEWEST: {"lc": task("LC", [1.0], wrong=2)}, OPEN: {}}
    found.cells[2].modes[NEWEST]["be"] = task("BE", [1.0], died="be ended early (signal 9)")
    found.cells[3].correct = False
    by_claim = {one.claim: one for one in claims.verdicts(found)}
    assert by_claim["wrong results in all cells"].word == claims.FAILS
    assert by_claim["wrong results in all cells"].measured == "wrong 3"
    assert found.latency_us("A", "slicing") is None  # nothing is said of a cell in which a program died
    told = {row[2] for row in tables.left_out(found).rows}
    assert {"be ended early (signal 9)", "2 wrong results", "results are not right at the end"} <= told


def test_requests_that_nobody_took_up_count_as_long_as_they_had_waited() -> None:
    one = task("LC", [100.0] * 98, late_us=[9000.0, 8000.0])
    assert one.rate == 98
    assert one.at(99) == 8000.0
    assert one.at(50) == 100.0
    assert one.mean() == pytest.approx((98 * 100 + 17_000) / 100)


def test_figures_draw_what_there_is_and_the_page_has_all_in_it() -> None:
    found = results()
    kinds = figures.chosen(None)
    assert [kind.key for kind in kinds] == ["4a", "4b", "5", "6", "7a", "7b", "tail", "scatter", "timeline"]
    drawn = {kind.key: pictures.png(kind, found) for kind in kinds}
    assert all(picture is not None and picture.startswith(b"\x89PNG") for picture in drawn.values())
    text = page.text(found, kinds, {key: picture for key, picture in drawn.items() if picture})
    assert text.count("data:image/png;base64,") == len(kinds)
    assert "http" not in text
    assert "NVIDIA H200" in text
    assert "published (A100, mean)" in text


def test_figures_of_nothing_are_none() -> None:
    only_y = results(workloads=("Y",))
    drawn = {kind.key: pictures.png(kind, only_y) is not None for kind in figures.chosen("4a,4b,5,7a")}
    assert drawn == {"4a": False, "4b": True, "5": True, "7a": False}
    with pytest.raises(UsageError, match="no figure '9'"):
        figures.chosen("4a,9")


def test_the_published_figures_agree_with_one_another() -> None:
    for name, latencies in published.LC_MS.items():
        added = (latencies["GP"] - latencies["LC-only"]) * 1000
        assert added == pytest.approx(published.ADDED_US[name]["GP"], abs=15)  # both are rounded


def test_the_document_has_a_figure_for_each_claim() -> None:
    assert "not measured" not in document.text(results()).partition("block-level")[0]


# -- the folder of a run ---------------------------------------------------------------------------


def test_a_run_is_gone_on_with_on_the_same_machine_only(tmp_path: Path) -> None:
    store = Store(tmp_path / "run")
    assert not store.begin({"driver": "580", "date": 1}, ("driver",))
    assert store.begin({"driver": "580", "date": 2}, ("driver",))
    with pytest.raises(UsageError, match=r"another driver \(580, now 590\)"):
        store.begin({"driver": "590", "date": 2}, ("driver",))


def test_cells_come_back_and_one_that_failed_is_tried_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, second, third, *_ = cells(1.0, 1, ("A",))
    second.note = "it did not start"
    third.modes[OPEN]["be"] = task("BE", [1.0], died="be ended early (signal 9)")
    for cell in (first, second, third):
        store.put(cell)
    assert [cell.system for cell in store.cells()] == ["alone", "one-process", "slicing"]
    assert not store.has("A", "slicing", 1)
    assert store.has("A", "alone", 1)
    assert not store.has("A", "one-process", 1)
    assert not store.has("A", "alone", 2)
    (tmp_path / "A" / "alone-1.json").write_text("{")
    with pytest.raises(UsageError, match=r"alone-1\.json.*remove it"):
        list(store.cells())


def test_a_result_that_differs_from_an_earlier_one_is_wrong(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.wrong("vgg19", {1: "a", 2: "b"}) == 0
    assert store.wrong("vgg19", {2: "b", 3: "c"}) == 0
    assert store.wrong("vgg19", {1: "x", 3: "c"}) == 1
    assert store.wrong("resnet152", {1: "x"}) == 0


def test_a_folder_without_a_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["plot", "-r", str(tmp_path / "gone")]) == 2
    assert "gone/machine.json" in capsys.readouterr().err
    assert command.main(["plot"]) == 2

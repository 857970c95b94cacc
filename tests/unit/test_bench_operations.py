"""The benchmark `operations`, and what is made of the cells of the Orion experiments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.benchmarks import operations
from bench.harness.mps import Mps
from bench.papers.common import pictures
from bench.papers.common.program import SHARED
from bench.papers.common.results import TaskResult
from bench.papers.orion import command, document, experiments, figures, systems, tables
from bench.papers.orion.analysis import Results
from bench.papers.orion.cells import Cell, Store
from bench.papers.orion.experiments import EACH, EXPERIMENTS, PROGRAMS, SERVED, TOGETHER
from bench.papers.orion.systems import SYSTEMS, Place
from runlist import operations as scheduling
from runlist.errors import NotSupportedError, UsageError

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "papers" / "orion.md"
RUNS = ("2026-11-26T1610-nvidia-orion", "2026-11-26T1638-nvidia-orion", "2026-11-27T1800-nvidia-orion-waited")
KEPT = [DOCUMENT.parent / "runs" / name for name in RUNS]
GPU = {"device": "nvidia", "gpus": ["a GPU"], "driver": "1", "window_s": 1.0}


# -- what a launch costs ---------------------------------------------------------------------------


def a_process(**changes: list[float]) -> dict[str, list[float]]:
    """What the program prints: launches by clients take 100 ns longer, and what is scheduled a quarter longer."""
    found = {"queued be": [900.0], "queued p99": [4000.0], "drained": [700.0], "deferred": [1.0, 1.0]}
    for client in operations.CLIENTS:
        found |= {f"launch {client} itself": [2000.0, 2100.0, 2050.0], f"launch {client} linked": [2150.0]}
        found |= {f"{what} {client} itself": [80.0] for what in ("large", "small")}
        found |= {f"{what} {client} linked": [100.0] for what in ("large", "small")}
        found[f"right {client}"] = [1.0]
    return {**found, **changes}


def by_name(*runs: dict[str, list[float]]) -> dict[str, Any]:
    return {figure.name: figure for figure in operations.figures(runs, 100, 10_000)}


def test_what_is_added_is_within_a_process_and_what_is_left_a_part_of_its_rate() -> None:
    slow = {key: [10 * value for value in values] for key, values in a_process().items() if not key.startswith("right")}
    found = by_name(a_process(), a_process(), {**a_process(), **slow})
    assert found["launch by best effort, unqueued: added"].value == 100
    assert found["launch by best effort, unqueued: added"].met
    assert found["launch into the queue: all of it"].value == 900
    assert found["100 large operations by high priority: rate / unscheduled"].value == pytest.approx(0.8)
    assert found["100 large operations by high priority: rate / unscheduled"].met is False
    assert found["all operations ran, and once"].met
    assert not any("no client: rate" in name for name in found)


def test_one_client_whose_kernels_did_not_all_run_is_told() -> None:
    assert by_name(a_process(), a_process(**{"right be": [0.0]}))["all operations ran, and once"].met is False


@pytest.mark.parametrize("deferred", [[1.0, 0.5], []])
def test_launches_that_did_not_wait_are_no_measurement_of_the_queue(deferred: list[float]) -> None:
    operations.check(a_process())
    one = a_process(deferred=deferred)
    if not deferred:
        del one["deferred"]
    with pytest.raises(RuntimeError, match="of the launches had to wait"):
        operations.check(one)


# -- experiments and configurations ----------------------------------------------------------------


def place(folder: Path, missing: str = "") -> Place:
    return Place(emulated=False, environment={"A": "b"}, folder=folder, mps=Mps({"PIPE": "p"}, missing))


def test_each_experiment_has_one_program_of_high_priority_and_it_is_the_first() -> None:
    for one in EXPERIMENTS.values():
        assert [task.urgent for task in one.tasks] == [True, False]
        assert set(one.programs) <= set(PROGRAMS)
        assert one.kind in {EACH, TOGETHER, SERVED}
    assert {name for one in EXPERIMENTS.values() for name in one.programs} == set(PROGRAMS)


def test_the_smoke_form_is_spin_and_the_other_form_our_programs() -> None:
    for program in PROGRAMS.values():
        assert program.words_of(True)[0] == f"{SHARED}.spin"
        assert program.words_of(False)[0] == f"{experiments.PACKAGE}.{program.module}"


def test_threads_are_one_process_and_only_a_rule_needs_the_library(tmp_path: Path) -> None:
    one = EXPERIMENTS["compute-memory"]
    (plain,) = SYSTEMS["threads"].starts(one, place(tmp_path))
    assert plain.tasks == ("hp", "be")
    assert "--operations" not in plain.words
    assert dict(plain.environment) == {"A": "b"}
    assert ["--priority" in word for word in plain.words[-2:]] == [True, False]
    (ruled,) = SYSTEMS["threads-orion"].starts(one, place(tmp_path))
    assert ruled.words[ruled.words.index("--operations") + 1] == "orion"
    assert ruled.environment["RUNLIST_OPERATIONS"] == "threads"
    assert ruled.environment["LD_PRELOAD"].endswith("librunlist.so")


def test_processes_take_turns_and_clients_of_mps_have_its_priority(tmp_path: Path) -> None:
    one = EXPERIMENTS["inference-training"]
    urgent, other = SYSTEMS["sequential"].starts(one, place(tmp_path))
    assert "--urgent" in urgent.words
    assert "--turn" in other.words
    assert "--urgent" not in other.words
    assert SYSTEMS["sequential"].ways() == ("turn",)
    assert SYSTEMS["slicing"].ways() == ()
    assert [start.environment["PIPE"] for start in SYSTEMS["mps"].starts(one, place(tmp_path))] == ["p", "p"]
    assert SYSTEMS["mps"].refuses(one, place(tmp_path, "no MPS here")) == "no MPS here"


def test_every_rule_that_is_compared_can_be_had(tmp_path: Path) -> None:
    one = EXPERIMENTS["inference-training"]
    assert set(systems.RULES) <= scheduling.builtin_rules().keys()
    refused = {name: system.refuses(one, place(tmp_path)) for name, system in SYSTEMS.items() if system.rule}
    assert set(refused.values()) == {""}
    urgent, other = SYSTEMS["mps-p99"].starts(one, place(tmp_path))
    assert [start.words[start.words.index("--class") + 1] for start in (urgent, other)] == ["latency", "batch"]
    assert urgent.words[urgent.words.index("--operations") + 1] == "p99"


def test_those_that_share_processes_are_started_once() -> None:
    grouped = systems.groups(list(SYSTEMS.values()))
    assert [one.name for one in grouped[0]] == ["alone", "sequential", "slicing"]
    assert sum(map(len, grouped)) == len(SYSTEMS)
    assert [one.name for one in systems.chosen("mps,slicing")] == ["alone", "slicing", "mps"]


@pytest.mark.parametrize("words", [["--only", "nonsense"], ["--only", ","], ["--systems", "nonsense"]])
def test_a_name_that_is_none_is_one_clear_line(words: list[str], tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    assert command.main(["run", "--out", str(out), "--device", "emulated", *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not out.exists()


# -- rules as numbers ------------------------------------------------------------------------------


def answer(rule: str) -> scheduling.Admission:
    return scheduling.load_rule(rule).admission(scheduling.Model(0.0, (), ()))


def test_a_rule_says_what_may_run_beside_what() -> None:
    unknown, compute, memory = range(3)

    def may(rule: str, first: int, second: int) -> bool:
        return bool(answer(rule).bits() >> (3 * first + second) & 1)

    assert all(may("greedy", first, second) for first in range(3) for second in range(3))
    assert not any(may("exclusive", first, second) for first in range(3) for second in range(3))
    assert may("orion", compute, memory)
    assert may("orion", memory, compute)
    assert may("orion", unknown, memory)
    assert may("orion", compute, unknown)
    assert not may("orion", compute, compute)
    assert not may("orion", memory, memory)
    assert not answer("exclusive").copies
    with pytest.raises(UsageError, match="no rule 'mine'"):
        answer("mine")


def test_without_the_library_threads_are_no_clients() -> None:
    with pytest.raises(NotSupportedError, match="library is not in this process"):
        scheduling.start(2, "greedy")


def test_who_is_hosted_as_a_client_without_the_library_says_so_in_a_line() -> None:
    command = [sys.executable, "-m", f"{SHARED}.hosted", "--operations", "greedy", f"hp={SHARED}.spin"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert ended.returncode != 0
    assert len(ended.stderr.splitlines()) == 1, ended.stderr


# -- what is made of cells -------------------------------------------------------------------------


def window(rate: float, *latency_us: float, kind: str = "LC") -> TaskResult:
    return TaskResult(kind, "gpt-decode", 1.0, round(rate), list(latency_us), {})


def cell(experiment: str, system: str, **changes: Any) -> Cell:
    return Cell(experiment, system, SYSTEMS[system].title, changes.pop("round", 1), correct=True, **changes)


def a_run() -> Results:
    return Results([GPU], [
        cell("compute-memory", "sequential", asked_us=[5000.0, 6000.0, 7000.0]),
        cell("compute-memory", "threads-orion", asked_us=[4000.0]),
        cell("compute-memory", "threads-orion", asked_us=[2000.0, 2000.0], round=2),
        cell("overhead-small", "threads", each_us={"hp": [900.0], "be": [800.0]}, asked_us=[1700.0]),
        cell("overhead-small", "mps", each_us={"hp": [1800.0], "be": [1600.0]}, asked_us=[3400.0]),
        cell("overhead-small", "mps-orion", each_us={"hp": [900.0]}, asked_us=[900.0]),
        cell("overhead-small", "threads-orion", each_us={"hp": [1000.0], "be": [1000.0]}, asked_us=[2000.0]),
        cell("inference-training", "alone", served={"hp": window(60, 1000.0, 1000.0), "be": window(20, kind="BE")}),
        cell("inference-training", "slicing", served={"hp": window(60, 4000.0), "be": window(10, kind="BE")}),
        cell("inference-training", "threads-orion", served={"hp": window(60, 1200.0), "be": window(16, kind="BE")},
             counters={"hp": {"launched": 9, "deferred": 0}, "be": {"launched": 200, "deferred": 50}}, wrong=2),
    ])  # fmt: skip


def test_together_is_compared_with_one_after_the_other() -> None:
    found, one = a_run(), EXPERIMENTS["compute-memory"]
    assert found.speedup(one, "threads-orion") == 3.0  # 6 ms over the median of all rounds' requests
    assert found.speedup(one, "sequential") == 1.0
    assert found.speedup(one, "slicing") is None


def test_what_a_rule_costs_is_compared_with_the_same_threads() -> None:
    found, one = a_run(), EXPERIMENTS["overhead-small"]
    assert [found.efficiency(one, "threads-orion", name) for name in ("hp", "be")] == [0.9, 0.8]
    assert found.efficiency(one, "threads-greedy", "hp") is None
    assert found.asked_us(one, "threads-orion") is None  # they were not asked together
    assert found.efficiency(one, "mps-orion", "hp") == 2.0  # with MPS's own
    row = next(row for row in tables.overhead(found).rows if row[:2] == (one.title, "best effort"))
    assert row[2:4] == ("0.8", "1.6")


def test_inference_is_compared_with_itself_alone_and_both_with_time_slicing() -> None:
    found, one = a_run(), EXPERIMENTS["inference-training"]
    assert found.p99_ratio(one, "threads-orion") == 1.2
    assert found.together(one, "alone") == 2.0
    assert found.together(one, "slicing") == 1.5
    assert found.together_ratio(one, "threads-orion") == pytest.approx(1.8 / 1.5)
    assert found.deferred(one, "threads-orion") == 0.25
    assert found.wrong(one, "threads-orion") == 2


def test_each_kind_of_inference_has_rows_of_its_own() -> None:
    alone = {"hp": window(60, 1000.0), "be": window(20, kind="BE")}
    found = Results([GPU], [cell("graph-inference-training", "alone", served=alone)])
    rows = {row[:2]: row[2] for row in tables.served(found).rows}
    assert rows["graph-inference-training", SYSTEMS["alone"].title] == "1"
    assert rows["inference-training", SYSTEMS["alone"].title] == tables.NOT_MEASURED


def test_a_cell_in_which_a_program_died_gives_no_figure() -> None:
    dead = TaskResult("LC", "gpt-decode", 1.0, 60, [1.0], {}, died="hp ended early (signal 9)")
    found = Results([GPU], [cell("inference-training", "slicing", served={"hp": dead, "be": window(9, kind="BE")})])
    one = EXPERIMENTS["inference-training"]
    assert found.p99_us(one, "slicing") is None
    assert found.wrong(one, "slicing") == 0
    assert any("signal 9" in row[2] for row in tables.left_out(found).rows)


def test_tables_have_all_rows_and_say_what_was_not_measured() -> None:
    empty, full = list(tables.all_of(Results())), list(tables.all_of(a_run()))
    assert [len(one.rows) for one in empty] == [len(one.rows) for one in full]
    for one in (*empty, *full):
        assert all(len(row) == len(one.heading) for row in one.rows)
    told = {word for one in empty for row in one.rows for word in row}
    assert not any(word[0].isdigit() and "." in word for word in told)
    assert tables.NOT_MEASURED in told
    assert "3" in next(row for row in full[0].rows if "beside 10 sums" in row[0] and "2048" in row[0])
    assert any(row[-2:] == ("25%", "2") for row in full[2].rows)


def test_pictures_show_only_what_was_measured() -> None:
    pytest.importorskip("matplotlib")
    drawn = {kind.key: pictures.png(kind, a_run()) for kind in figures.chosen(None)}
    assert all(picture is not None and picture.startswith(b"\x89PNG") for picture in drawn.values())
    assert pictures.png(figures.KINDS["scatter"], Results([GPU])) is None
    with pytest.raises(UsageError, match="no picture 'pie'"):
        figures.chosen("pie")


def test_runs_of_different_experiments_are_shown_together(tmp_path: Path) -> None:
    stores = [Store(tmp_path / name) for name in ("first", "second")]
    for store, key in zip(stores, ("inference-training", "graph-inference-training"), strict=True):
        store.begin({**GPU, "rounds": 1}, ())
        store.put(cell(key, "alone", served={"hp": window(60, 1000.0), "be": window(20, kind="BE")}))
    both = Results.of(*stores)
    assert [one.key for one in both.experiments] == ["inference-training", "graph-inference-training"]
    assert document.text(both).count("a GPU, driver 1") == 2
    with pytest.raises(UsageError, match="inference-training: is in two of these runs"):
        Results.of(stores[0], stores[0])


# -- the document ----------------------------------------------------------------------------------


def test_the_document_is_what_the_command_writes_between_its_marks(tmp_path: Path) -> None:
    copy = tmp_path / "orion.md"
    copy.write_text(DOCUMENT.read_text())
    document.write(copy, Results.of(*map(Store, KEPT)))
    assert copy.read_text() == DOCUMENT.read_text(), "write it again: python -m bench.papers.orion plot --document …"
    document.write(copy, a_run())
    assert "a GPU, driver 1" in copy.read_text()
    document.write(copy, Results([{**GPU, "device": "emulated"}], a_run().cells))
    unmeasured = copy.read_text()  # no figure is of an emulated GPU
    document.write(copy, Results())
    assert copy.read_text() == unmeasured
    assert "No run on a GPU has been kept yet" in unmeasured


def test_a_document_without_marks_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.md"
    path.write_text("mine\n")
    with pytest.raises(UsageError, match="lacks the marks"):
        document.write(path, Results())
    assert path.read_text() == "mine\n"
    with pytest.raises(UsageError, match="name a document"):
        document.write(tmp_path / "gone.md", Results())


def test_a_cell_that_failed_is_tried_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(cell("two-gemm", "mps", note="no memory"))
    assert not store.has("two-gemm", "mps", 1)
    store.put(cell("two-gemm", "mps", asked_us=[1.0]))
    assert store.has("two-gemm", "mps", 1)
    assert [one.asked_us for one in store.cells()] == [[1.0]]

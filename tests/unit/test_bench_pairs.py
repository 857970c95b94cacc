"""The arithmetic of the benchmark `pairs`, and what its command line takes."""

from __future__ import annotations

import argparse
import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from bench.harness import pair_report
from bench.harness.pair_figures import (
    BATCH,
    IDEAL,
    P50,
    P50_BETTER,
    P99,
    P99_BETTER,
    P99_DEFAULT,
    P999,
    TARGETS,
    figures,
    ratios,
    summary,
    worse_on_both_sides,
)
from bench.harness.pair_programs import BATCH as BATCH_PROGRAMS
from bench.harness.pair_programs import CONFIGURATIONS, LATENCY, PAIRS, PROGRAMS, checked, configurations, pairs
from bench.harness.pair_run import Length, Measured, NoAnswerError, Samples, unmanaged

LENGTH = Length(mean_us=1000.0, gpu_us=500.0, gpu_by="", rate=400.0)


def samples(scale: float, batch: list[list[float]], rate: float = 400.0) -> Samples:
    """Response times of 10 to 1000 µs, times `scale`, in two rounds."""
    times = [scale * 10 * place for place in range(1, 101)]
    return Samples([times[::2], times[1::2]], [0.0] * 100, [rate, rate], batch, daemon=[0.02, 0.04])


def measured(**others: Samples) -> Measured:
    return Measured(pairs("token-loop+matmul")[0], LENGTH, samples={"alone": samples(1, [[100.0], [100.0]]), **others})


def test_percentiles_are_of_all_rounds_together_and_batch_rates_the_mean_of_the_rounds() -> None:
    got = ratios(measured(runlist=samples(1.1, [[60.0, 10.0], [80.0, 10.0]])), "runlist")
    assert [got[what] for what in (P50, P99, P999)] == pytest.approx([1.1] * 3)
    assert got[BATCH] == pytest.approx(0.8)
    assert got[IDEAL] == pytest.approx(0.8 / (1 - 400 * 500e-6))
    assert not {P50_BETTER, P99_BETTER, P99_DEFAULT} & got.keys()


def test_the_ideal_goes_by_what_was_answered() -> None:
    got = ratios(measured(runlist=samples(1, [[50.0]], rate=1000.0)), "runlist")
    assert got[IDEAL] == pytest.approx(0.5 / 0.5)
    assert IDEAL not in ratios(measured(runlist=samples(1, [[50.0]], rate=2000.0)), "runlist")


def test_the_better_of_alone_and_default_is_taken_for_each_percentile() -> None:
    default = samples(0.5, [[50.0]])
    default.responses[-1][-1] = 4000.0  # its p99.9
    got = ratios(measured(default=default, runlist=samples(1, [[50.0]])), "runlist")
    assert (got[P50_BETTER], got[P99_BETTER], got[P99_DEFAULT]) == pytest.approx((2, 2, 2))
    assert got[P999] == pytest.approx(1)


@pytest.mark.parametrize(
    ("scale", "batch", "worse"),
    [(2.1, 45.0, True), (2.1, 55.0, False), (1.9, 45.0, False), (2.01, 45.0, False), (2.1, 49.5, False)],
)
def test_worse_on_both_sides_is_a_longer_tail_and_a_lower_rate(scale: float, batch: float, worse: bool) -> None:
    one = measured(default=samples(2, [[50.0]]), runlist=samples(scale, [[batch]]))
    assert worse_on_both_sides(one) is worse
    (wrong, counted) = summary([one], {"jax+matmul": "needs jax"})
    assert (wrong.value, counted.value) == (0, worse)
    assert counted.met is not worse
    assert wrong.details["left out"] == {"jax+matmul": "needs jax"}


def test_where_nothing_was_compared_nothing_is_counted() -> None:
    one = measured(runlist=samples(1, [[50.0]]))
    assert worse_on_both_sides(one) is None
    assert len(summary([one], {})) == 1


def test_figures_are_of_runlist_alone_and_targets_of_its_own_defaults() -> None:
    one = measured(mps=samples(9, [[99.0]]), **{"runlist:give_way=slice": samples(1, [[50.0]])},
                   runlist=samples(1.12, [[78.0]]))  # fmt: skip
    found = {figure.name: figure for figure in figures(one)}
    assert len(found) == 12
    assert found["token-loop+matmul: daemon"].value == pytest.approx(3)
    assert found[f"token-loop+matmul, give_way=slice: {P99}"].target is None
    assert [found[f"token-loop+matmul: {what}"].met for what in (P50, P99, IDEAL, BATCH)] == [False, True, True, None]
    told = [figure.details for figure in found.values() if figure.details]
    assert len(told) == 1
    rows = {row["configuration"]: row for row in told[0]["configurations"]}
    assert rows.keys() == {"alone", "mps", "runlist:give_way=slice", "runlist"}
    assert rows["alone"]["responses, µs, by round"][0].split()[:3] == ["10", "30", "50"]


def test_a_crowd_is_set_beside_one() -> None:
    one, crowd = measured(runlist=samples(1.1, [[80.0]])), measured(runlist=samples(1.32, [[80.0]]))
    crowd.pair = pairs("token-loop+matmul*8")[0]
    found = {figure.name: figure for figure in summary([one, crowd], {})}
    figure = found["token-loop+matmul*8: response p99 / with one"]
    assert (figure.value, figure.met) == (pytest.approx(1.2), False)
    assert not any("with one" in figure.name for figure in summary([crowd], {}))


def test_every_target_is_one_of_a_pair_and_of_what_is_measured() -> None:
    everything = {P50, P99, P999, BATCH, IDEAL, P50_BETTER, P99_BETTER, P99_DEFAULT}
    by_default = {str(pair) for pair in pairs(PAIRS["nvidia"])}
    assert TARGETS.keys() <= by_default
    assert all(targets.keys() <= everything for targets in TARGETS.values())


def test_what_the_timer_was_late_is_no_part_of_a_response() -> None:
    found = Samples()
    before = {"seconds": 1.0, "response_us": [900.0], "wake_us": [100.0]}
    found.add_requests({"seconds": 2.0, "response_us": [150.0, 300.0], "wake_us": [50.0, 0.0]}, before)
    assert found.responses == [[100.0, 300.0]]
    assert (found.wakes, found.rate) == ([50.0, 0.0], 1.0)
    with pytest.raises(NoAnswerError, match=r"no request was answered in 2\.0 s"):
        found.add_requests({"seconds": 2.0, "response_us": [], "wake_us": []}, before)


def test_the_rate_is_chosen_by_the_mean_length_and_the_gpu_time_by_who_knows_it() -> None:
    assert Length.of([900.0, 1100.0], 0.35, None, None).rate == pytest.approx(350)
    assert [Length.of([900.0, 1100.0], 0.35, *known).gpu_us for known in ((7.0, 8.0), (None, 8.0), (None, None))] == [
        7.0, 8.0, 900.0
    ]  # fmt: skip


def test_programs_that_nobody_manages_are_named() -> None:
    def task(task_class: str, reached_by: str = "launcher") -> Any:
        return SimpleNamespace(task_class=task_class, reached_by=reached_by, why="nobody may borrow from it")

    assert unmanaged([task("latency"), task("batch"), task("batch")], 2) == ""
    assert unmanaged([task("latency"), task("batch", "")], 1) == "batch: nobody may borrow from it"
    assert unmanaged([task("batch")], 1) == "1 tasks are managed, and 2 programs work"


def test_pairs_are_read_as_they_are_written() -> None:
    for text in ("token-loop+matmul*8", *PAIRS.values()):
        assert ",".join(map(str, pairs(text))) == text
    for wrong in ("", "matmul", "matmul+token-loop", "graph+matmul*0", "graph+matmul*100", "graph+matmul,"):
        with pytest.raises(ValueError, match="is no pair"):
            pairs(wrong)


@pytest.mark.parametrize("device", PROGRAMS)
def test_programs_are_there_for_all_pairs_that_are_measured_by_default(device: str) -> None:
    assert PROGRAMS[device].keys() >= {name for pair in pairs(PAIRS[device]) for name in (pair.latency, pair.batch)}
    assert PROGRAMS[device].keys() <= {*LATENCY, *BATCH_PROGRAMS}


def test_configurations_begin_with_alone_and_give_options_to_runlist_only() -> None:
    assert list(configurations(CONFIGURATIONS)) == CONFIGURATIONS.split(",")
    assert configurations("runlist:give_way=slice+quantum_ms=50,default") == {
        "alone": {}, "runlist:give_way=slice+quantum_ms=50": {"give_way": "slice", "quantum_ms": "50"}, "default": {},
    }  # fmt: skip
    for wrong in ("", "fast", "mps:a=b", "runlist:a", "runlist:=b", "runlist:a="):
        with pytest.raises(ValueError, match=r"is no configuration|write an option"):
            configurations(wrong)
    with pytest.raises(argparse.ArgumentTypeError, match="'fast' is no configuration"):
        checked(configurations)("fast")
    assert checked(configurations)("alone") == "alone"


def test_all_that_was_measured_is_in_the_table_and_in_the_picture() -> None:
    all_measured = [measured(default=samples(2, [[50.0]]), runlist=samples(1.5, [[40.0]]))]
    console = Console(file=io.StringIO(), width=140)
    console.print(pair_report.table(all_measured))
    said = console.file.getvalue()
    assert [word in said for word in ("token-loop+matmul", "default", "runlist")] == [True] * 3
    assert " 1.5 " in said
    assert pair_report.picture(all_measured, "a title").startswith(b"\x89PNG")

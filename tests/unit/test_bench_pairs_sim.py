"""Kinds of pairs that nobody named, in the simulator: a part of what `python -m bench pairs_sim` has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from bench.harness import simulated_pairs as pairs
from bench.harness.pair_figures import NOISE
from bench.harness.simulated_pairs import AUTO, BACKGROUNDS, DEFAULT, PROGRAMS, WAYS, Row, better, compare
from runlist.model import Cap, TaskClass
from runlist.policies.parts.give_way import Way
from runlist.sim import Trace
from runlist.sim.machine import Machine
from runlist.sim.workload import TenantSpec


@pytest.mark.parametrize(
    ("program", "background", "way"),
    [
        ("lookup", "products", Way.SWITCH),
        ("bursts", "tiny-kernels", Way.SWITCH),
        ("graph", "products", Way.SWITCH),
        ("short-tokens", "products", Way.REQUEST),
        ("embeddings", "training", Way.SLICE),
        ("resnet", "two-jobs", Way.SLICE),
    ],
)
def test_no_pair_is_worse_than_by_default_on_both_sides_and_the_way_stays(
    program: str, background: str, way: Way
) -> None:
    default, ours = (
        pairs.simulate(PROGRAMS[program], BACKGROUNDS[background], WAYS[name], 1.2) for name in (DEFAULT, AUTO)
    )
    assert ours.p99 <= (1 + NOISE) * default.p99 or ours.batch >= (1 - NOISE) * default.batch
    assert [each for _, each in ours.ways] == [Way.SWITCH, way][way is Way.SWITCH :]
    if program == "lookup":  # 1,400 a second, each waited for: one window of slices would have all later wait for long
        assert ours.p99 < 1_000


@pytest.mark.parametrize("background", ["products", "host-bound"])
def test_requests_that_fall_behind_by_switch_are_served_whole_at_once(background: str) -> None:
    """A quarter of a millisecond at a load of 0.6: what queues up in half a second is late for seconds."""
    alone = pairs.simulate(PROGRAMS["lookup-full"], [], WAYS[DEFAULT], 1.5)
    ours = pairs.simulate(PROGRAMS["lookup-full"], BACKGROUNDS[background], WAYS[AUTO], 1.5)
    assert [each for _, each in ours.ways] == [Way.SWITCH, Way.REQUEST]
    assert ours.p99 < 10 * alone.p99


def test_a_load_that_rises_again_is_served_whole_again() -> None:
    """Requests were given up as it fell, and not tried again for 10 s, in which it fell behind."""

    def falls_and_rises(seconds: float, _hz: float, random: Random) -> Iterator[float]:
        times = pairs.poisson(seconds, 2_600, random)
        return (time for time in times if not 0.4 < time < 2.4 or random.random() < 0.3)

    program = replace(PROGRAMS["lookup-full"], arrivals=falls_and_rises)
    alone = pairs.simulate(program, [], WAYS[DEFAULT], 3.2)
    ours = pairs.simulate(program, BACKGROUNDS["products"], WAYS[AUTO], 3.2)
    assert [each for _, each in ours.ways] == [Way.SWITCH, Way.REQUEST, Way.SWITCH, Way.REQUEST]
    assert ours.p50 < 5 * alone.p50


def test_a_cap_on_who_is_served_nearly_always_leaves_the_background_some() -> None:
    spec = replace(PROGRAMS["lookup-full"].spec, cap=Cap(45_000, 50_000))
    capped = pairs.simulate(replace(PROGRAMS["lookup-full"], spec=spec), BACKGROUNDS["products"], WAYS[AUTO], 1.0)
    assert capped.batch > 0.05
    assert capped.p50 < 1_000


@pytest.mark.parametrize("background", ["products", "host-bound"])
def test_a_program_that_waits_for_its_host_only_while_the_background_is_off_keeps_that(background: str) -> None:
    """It waits for each of short pieces: by switch it falls behind, and slices would be worse."""
    spec = TenantSpec("p", TaskClass.LATENCY, kernel_us=(5.0,) * 60, host_us=25.0, wait_every=5, tells=True)
    program = pairs.Program(spec, pairs.poisson, load=0.8)
    alone = pairs.simulate(program, [], WAYS[DEFAULT], 2.0)
    ours = pairs.simulate(program, BACKGROUNDS[background], WAYS[AUTO], 2.0)
    assert [each for _, each in ours.ways] == [Way.SWITCH, Way.REQUEST]
    assert ours.p50 < 30 * alone.p50  # what queued up in the first half of a second is late


def test_slices_for_requests_as_long_as_a_window_stay_and_cost_what_they_may() -> None:
    """What happens while nobody looks counts, too: it was taken for idleness, and slices became too short for it."""
    spec = TenantSpec("p", TaskClass.LATENCY, kernel_us=(40.0,) * 1_000, host_us=225.0, wait_every=40, tells=True)
    program = pairs.Program(spec, pairs.steady, load=0.4)
    default, ours = (pairs.simulate(program, BACKGROUNDS["products"], WAYS[name], 9.0) for name in (DEFAULT, AUTO))
    assert [each for _, each in ours.ways] == [Way.SWITCH, Way.SLICE]
    assert ours.batch > 0.92 * default.batch


@pytest.mark.parametrize(("program", "worst"), [("callbacks", 6), ("fft", 80)])
def test_a_program_that_tells_nothing_and_waits_for_each_piece_does_not_fall_behind_for_longer_than_it_takes_to_see(
    program: str, worst: float
) -> None:
    """Slices are tried, and given up within a fortieth of a second where enough pieces show it."""
    untold = replace(PROGRAMS[program], spec=replace(PROGRAMS[program].spec, tells=False))
    alone = pairs.simulate(untold, [], WAYS[DEFAULT], 1.5)
    ours = pairs.simulate(untold, BACKGROUNDS["products"], WAYS[AUTO], 1.5)
    assert ours.p50 < 3 * alone.p50
    assert ours.p99 < worst * alone.p99


def test_a_pair_is_compared_with_each_side_alone() -> None:
    found = compare("kernel", "products", [DEFAULT, AUTO], seconds=0.5, seeds=[1])
    assert list(found) == [DEFAULT, AUTO]
    assert found[AUTO].p99 < found[DEFAULT].p99
    assert 0.8 < found[AUTO].batch < 1.0


def test_requests_that_come_in_are_the_same_in_each_run() -> None:
    program = replace(PROGRAMS["embeddings"], load=0.2)
    first, again = (pairs.simulate(program, [], WAYS[DEFAULT], 0.5, seed=3) for _ in range(2))
    assert first == again
    assert len(first.responses) > 10


def test_how_requests_come() -> None:
    for kind in (pairs.steady, pairs.poisson, pairs.bursts, pairs.on_and_off):
        times = list(kind(16.0, 50.0, Random("seed")))
        assert times == sorted(times)
        assert all(0 <= time < 16 for time in times)
        assert len(times) == pytest.approx(400 if kind is pairs.on_and_off else 800, rel=0.25)
    assert not any(4 <= time < 8 for time in pairs.on_and_off(16.0, 50.0, Random("seed")))


def row(way: str, p99: float, batch: float) -> Row:
    return Row("program", "background", way, 1.0, p99, batch, 0, 0)


def rows(*ours: float) -> dict[str, Row]:
    others = {"default": (2.0, 0.8), "switch": (1.0, 0.5), "request": (1.0, 0.4), "slice": (1.5, 0.8)}
    return {way: row(way, *figures) for way, figures in {**others, AUTO: ours}.items()}


@pytest.mark.parametrize(
    ("p99", "batch", "is_worse", "ways"),
    [
        (2.1, 0.7, True, ["slice"]),
        (2.01, 0.7, False, ["slice"]),
        (2.1, 0.79, False, ["slice"]),
        (1.5, 0.8, False, []),
        (1.3, 0.5, False, ["switch"]),
        (1.0, 0.41, False, ["switch"]),
    ],
)
def test_what_is_worse_and_much_better(p99: float, batch: float, is_worse: bool, ways: list[str]) -> None:
    assert pairs.worse_on_both_sides(rows(p99, batch)) is is_worse
    assert better(rows(p99, batch)) == ways


def untold(**spec: object) -> pairs.Program:
    return pairs.Program(TenantSpec("p", TaskClass.LATENCY, **spec), pairs.steady, load=0.08)  # type: ignore[arg-type]


def test_a_program_that_tells_nothing_and_is_spared_nothing_has_no_slices() -> None:
    """It waits eight times a request, for pieces as short as a switch: beside slices of 2 ms it would fall behind."""
    program = untold(kernel_us=(27.5,) * 30, host_us=25.0, wait_every=4)
    alone = pairs.simulate(program, [], WAYS[DEFAULT], 1.2)
    ours = pairs.simulate(program, BACKGROUNDS["tiny-kernels"], WAYS[AUTO], 1.2)
    assert ours.p50 < 4 * alone.p50


def test_a_program_that_never_ends_a_request_leaves_the_background_its_breaks() -> None:
    """It launches kernels of 1 µs and waits for each: it had the GPU for itself, and used a fiftieth of it."""
    spec = TenantSpec("p", TaskClass.LATENCY, kernel_us=(1.0,) * 50_000, step_gap_us=30.0, tells=True)
    machine = Machine(Trace("spins", 1.8, [spec, *BACKGROUNDS["products"]]), WAYS[AUTO], 1, 1.8, 1)
    machine.run()
    spinner, batch = machine.tenants
    assert batch.context.worked > 0.01 * machine.end
    assert "its request does not end" in machine.gpus[0].scheduler.loop.why(spinner.key)


@pytest.mark.parametrize("program", ["resnet", "eager-llm"])
def test_a_tight_target_ends_slices_before_the_background_loses_its_time(program: str) -> None:
    spec = replace(PROGRAMS[program].spec, target_p99_us=1.1e6 * PROGRAMS[program].length_s)
    ours = pairs.simulate(replace(PROGRAMS[program], spec=spec), BACKGROUNDS["products"], WAYS[AUTO], 2.0)
    assert [each for _, each in ours.ways] == [Way.SWITCH, Way.SLICE, Way.SWITCH]


def test_beside_a_program_that_tells_nothing_another_keeps_the_gpu_for_its_requests() -> None:
    silent = TenantSpec("s", TaskClass.LATENCY, kernel_us=(8.0,) * 40, step_gap_us=1_200.0)
    ours = pairs.simulate(PROGRAMS["lookup-full"], [silent, *BACKGROUNDS["products"]], WAYS[AUTO], 0.8)
    assert [each for _, each in ours.ways] == [Way.SWITCH, Way.REQUEST]

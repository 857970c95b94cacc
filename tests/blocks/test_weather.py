"""The weather model on processor threads: what the equations keep, how errors shrink, the same bits through stops."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from bench.papers.gpreempt import atmosphere, forecast
from bench.papers.gpreempt.atmosphere import CASES, Air, Array, Case
from runlist.blocks import cubin
from runlist.blocks.device import Device
from runlist.blocks.host import Host
from runlist.blocks.page import Page, Stopper
from runlist.errors import NotSupportedError
from tests.fixtures.effort import TIMES

CLOSED = sorted(name for name, case in CASES.items() if case.closed)

Make = Callable[..., forecast.Model]


@pytest.fixture
def make(host: Host) -> Iterator[Make]:
    kernels = forecast.Plain(host)
    made: list[forecast.Model] = []

    def model(case: Case, nx: int = 64, nz: int = 32, others: forecast.Kernels | None = None) -> forecast.Model:
        made.append(forecast.Model(host, others or kernels, case, nx, nz))
        return made[-1]

    yield model
    for each in made:
        each.close()


def _inner(model: forecast.Model) -> Array:
    return model.state()[:, 2:-2, 2:-2]


def _advance(model: forecast.Model, seconds: float) -> None:
    for _ in range(round(seconds / model.seconds)):
        model.step()


def _digest(device: Device, model: forecast.Model) -> str:
    model.digest()
    device.synchronize()
    return model.digested()


@pytest.mark.parametrize("name", CLOSED)
def test_mass_and_energy_stay(make: Make, name: str) -> None:
    model = make(CASES[name])
    before = model.totals()
    _advance(model, 200)
    after = model.totals()
    assert abs(after[0] - before[0]) <= 1e-9 * before[0]
    assert abs(after[1] - before[1]) <= 1e-4 * before[1]
    assert np.abs(_inner(model)[2]).max() > 0.01, "nothing moves"


def test_what_air_gains_in_motion_it_had_in_weight_and_warmth(make: Make) -> None:
    """Far more exact than the whole energy tells: of what moves, damping takes a little, and nothing is added."""
    model = make(CASES["thermal"])
    before = model.totals()[1]
    _advance(model, 100)
    density, across, up, _ = _inner(model)
    whole = density + atmosphere.background_cells(model.case, 32)[0][2:-2, None]
    moving = ((across**2 + up**2) / (2 * whole)).sum() * (atmosphere.LENGTH / 64) ** 2
    assert -0.03 * moving < model.totals()[1] - before < 0


@pytest.mark.parametrize("background", [atmosphere.mixed, atmosphere.stable])
def test_air_at_rest_stays_at_rest_to_the_last_bit(make: Make, background: atmosphere.Background) -> None:
    model = make(dataclasses.replace(CASES["thermal"], background=background, air=_still))
    for _ in range(20):
        model.step()
    assert not _inner(model).any()


def _still(x: Array, z: Array, density: Array, heat: Array) -> Air:
    none = np.zeros_like(x)
    return Air(none, none, none, none)


def test_what_is_symmetric_stays_so_to_the_last_bit(make: Make) -> None:
    model = make(CASES["collision"])
    _advance(model, 100)
    density, across, up, heat = _inner(model)
    assert np.abs(across).max() > 1
    for even in (density, up, heat):
        assert np.array_equal(even, even[:, ::-1])
    assert np.array_equal(across, -across[:, ::-1])


def test_warm_air_rises_and_cold_air_spreads_on_the_ground(make: Make) -> None:
    thermal, current = make(CASES["thermal"]), make(CASES["density-current"])

    def height(model: forecast.Model) -> float:
        lighter = np.minimum(_inner(model)[0], 0)
        heights = (np.arange(32) + 0.5) * atmosphere.HEIGHT / 32
        return float((lighter * heights[:, None]).sum() / lighter.sum())

    began = height(thermal)
    _advance(thermal, 300)
    assert height(thermal) > began + 200
    _advance(current, 400)
    wind = _inner(current)[1][0]
    assert wind[:32].min() < -10
    assert wind[32:].max() > 10


def test_air_in_layers_swings_as_fast_as_it_should(make: Make) -> None:
    """An internal wave, one length wide and half a length high: w² = N² k² / (k² + m²), to what air being compressible
    and thinner above changes.
    """
    frequency, wide, high = 0.02, 2 * np.pi / atmosphere.LENGTH, np.pi / atmosphere.HEIGHT

    def air(x: Array, z: Array, density: Array, heat: Array) -> Air:
        none = np.zeros_like(x)
        return Air(1e-5 * density * np.cos(wide * x) * np.sin(high * z), none, none, none)

    model = make(dataclasses.replace(CASES["waves"], lift=None, air=air))
    shape = atmosphere.averages(model.case, 64, 32)[0, 2:-2, 2:-2]
    times, swings = [], []
    while not swings or swings[-1] > 0:
        for _ in range(4):
            model.step()
        times.append(model.steps * model.seconds)
        swings.append(float((shape * _inner(model)[0]).sum()))
        assert times[-1] < 400
    quarter = np.pi / 2 / (frequency * wide / np.hypot(wide, high))
    assert times[-1] == pytest.approx(quarter, rel=0.12)


def test_what_a_jet_brings_in_is_what_goes_over_the_edges(make: Make) -> None:
    model = make(CASES["injection"])
    _advance(model, 30)
    before = _inner(model)[0].sum()
    model.sweep("x")
    after = _inner(model)[0].sum()
    flux = model.flux()[0, :-1]
    cells_in = model.seconds * (flux[:, 0] - flux[:, -1]).sum() / (atmosphere.LENGTH / 64)
    assert cells_in > 0
    assert after - before == pytest.approx(cells_in, rel=1e-9)


_DENSITY = 1.2
_HEAT = 360.0


def _even(heights: Array) -> tuple[Array, Array]:
    return np.full_like(heights, _DENSITY), np.full_like(heights, _HEAT)


def _weightless(air: Callable[[Array, Array], Air], wind: float = 0.0) -> Case:
    return Case(_even, lambda x, z, _r, _t: air(x, z), gravity=0.0, wind=wind, length=1_000.0, height=1_000.0)


def _errors(make: Make, case: Case, expected: Callable[[float], Case], sizes: list[tuple[int, int]]) -> list[float]:
    """The most that a density is wrong by, after the same time on each grid."""
    errors = []
    for nx, nz in sizes:
        model = make(case, nx, nz)
        _advance(model, 1.0)
        right = atmosphere.averages(expected(model.steps * model.seconds), nx, nz)[0, 2:-2, 2:-2]
        errors.append(float(np.abs(_inner(model)[0] - right).max()))
    return errors


def test_errors_of_a_drifting_wave_shrink_with_the_third_power_of_cells(make: Make) -> None:
    """Air of one pressure and speed, whose density alone varies, is carried along as it is."""
    speed = 100.0

    def at(seconds: float) -> Case:
        def air(x: Array, z: Array) -> Air:
            more = 0.1 * np.sin(2 * np.pi * (x - speed * seconds) / 1_000.0)
            return Air(more, speed * (_DENSITY + more), np.zeros_like(x), np.zeros_like(x))

        return _weightless(air, speed)

    errors = _errors(make, at(0.0), at, [(16, 16), (32, 32), (64, 64)])
    orders = np.log2(np.divide(errors[:-1], errors[1:]))
    assert (orders > 2.7).all(), (errors, orders)


def test_errors_of_sound_between_the_walls_shrink_alike(make: Make) -> None:
    """A standing wave, so faint that it is linear."""
    sound = float(np.sqrt(atmosphere.GAMMA * atmosphere.C * _HEAT**atmosphere.GAMMA / _DENSITY))
    wave = 2 * np.pi / 1_000.0

    def at(seconds: float) -> Case:
        def air(x: Array, z: Array) -> Air:
            more = 1e-7 * np.cos(wave * z) * np.cos(wave * sound * seconds)
            up = 1e-7 * sound * np.sin(wave * z) * np.sin(wave * sound * seconds)
            return Air(more * _DENSITY, np.zeros_like(x), up * _DENSITY, more * _HEAT)

        return _weightless(air)

    errors = _errors(make, at(0.0), at, [(16, 16), (32, 32), (64, 64)])
    orders = np.log2(np.divide(errors[:-1], errors[1:]))
    assert (orders > 2.7).all(), (errors, orders)


def test_two_runs_leave_the_same_bits_and_one_other_bit_is_seen(make: Make, host: Host) -> None:
    one, other = make(CASES["waves"]), make(CASES["waves"])
    for _ in range(10):
        one.step()
        other.step()
    first = _digest(host, one)
    assert _digest(host, other) == first
    assert np.array_equal(one.state(), other.state())
    state = other.state()
    state[3, 10, 10] = np.nextafter(state[3, 10, 10], np.inf)
    host.write(other._state, state.tobytes())
    assert _digest(host, other) != first
    one.renew()
    for _ in range(10):
        one.step()
    assert _digest(host, one) == first


def test_to_run_the_last_kernel_twice_is_wrong(make: Make, host: Host) -> None:
    one, other = make(CASES["thermal"]), make(CASES["thermal"])
    one.sweep("x")
    other.sweep("x")
    assert _digest(host, one) == _digest(host, other)
    other.sweep("x", begin=8)
    assert _digest(host, one) != _digest(host, other)


@pytest.mark.timeout(120 * TIMES)
def test_random_stops_leave_the_same_bits(make: Make, host: Host, page_path: Path) -> None:
    steps = 40 * TIMES
    expected = make(CASES["collision"])
    for _ in range(steps):
        expected.step()
    right = _digest(host, expected)

    page = Page(page_path)
    stoppable = forecast.Stoppable(host, page)
    model = make(CASES["collision"], others=stoppable)
    ended = threading.Event()

    def disturb() -> None:
        chance = random.Random(1)
        with Stopper(page_path) as stopper:
            while not ended.is_set():
                stopper.stop()
                ended.wait(chance.uniform(0, 2e-4))
                stopper.resume()
                ended.wait(chance.uniform(0, 2e-3))

    other = threading.Thread(target=disturb)
    other.start()
    try:
        for _ in range(steps):
            model.step()
    finally:
        ended.set()
        other.join()
    launches = sum(each.progress().epoch for each in stoppable.executors)
    assert launches >= steps + 20, "hardly ever stopped"
    assert _digest(host, model) == right
    assert np.array_equal(model.state()[:, 2:-2, 2:-2], expected.state()[:, 2:-2, 2:-2])
    model.close()
    stoppable.close()
    page.close()


@pytest.mark.parametrize("made", ["plain", "resumable"])
def test_the_kernels_compile_for_hopper(made: str) -> None:
    from runlist.blocks import source

    text = forecast.SOURCE.read_text()
    if made == "resumable":
        text = source.resumable(text)
    try:
        code = cubin.compiled(text, forecast.SOURCE.name, "sm_90", ("--fmad=false",))
    except NotSupportedError as error:
        pytest.skip(str(error))
    for kernel in source.kernels(text):
        assert kernel.name.encode() in code

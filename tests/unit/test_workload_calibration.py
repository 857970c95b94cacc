"""How long a round is, on quiet and on busy machines."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest

from runlist.workloads.calibration import PATIENCE_S, SHORTEST_US, microseconds_per_round
from runlist.workloads.gpu import GpuError

ROUND_US = 0.004
LAUNCH_US = 7.0


class Machine:
    """A GPU with a clock; `noise` adds µs to each kernel."""

    def __init__(self, noise: Callable[[], float], round_us: float = ROUND_US) -> None:
        self.now = 0.0
        self._noise = noise
        self._round_us = round_us

    def timed(self, rounds: int) -> float:
        took = LAUNCH_US + rounds * self._round_us + self._noise()
        self.now += took * 1e-6
        return took

    def clock(self) -> float:
        return self.now


def measured(machine: Machine) -> float:
    return microseconds_per_round(machine.timed, machine.clock)


def test_a_quiet_machine() -> None:
    assert measured(Machine(lambda: 0.0)) == pytest.approx(ROUND_US)


@pytest.mark.parametrize("seed", range(20))
def test_a_machine_whose_kernels_are_often_late(seed: int) -> None:
    chance = random.Random(seed)
    machine = Machine(lambda: chance.choice([0.0, 0.0, chance.expovariate(1 / 400)]))
    assert measured(machine) == pytest.approx(ROUND_US, rel=0.05)


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("mean_us", [3e3, 3e5])
def test_a_machine_that_is_never_quiet_is_right_or_says_so_in_time(seed: int, mean_us: float) -> None:
    """Where each kernel waits for long, the longer one may seem the shorter: that made hours of a kernel."""
    chance = random.Random(seed)
    machine = Machine(lambda: chance.expovariate(1 / mean_us))
    with contextlib.suppress(GpuError):
        assert measured(machine) >= SHORTEST_US
    assert machine.now < PATIENCE_S + 3


def test_kernels_that_take_no_time_at_all_are_told() -> None:
    machine = Machine(lambda: 0.0, round_us=0.0)
    with pytest.raises(GpuError, match="--rounds"):
        measured(machine)


def test_a_kernel_that_takes_for_ever_is_not_repeated() -> None:
    machine = Machine(lambda: 2e6)
    assert measured(machine) == pytest.approx(ROUND_US)
    assert machine.now < 20

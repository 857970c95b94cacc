"""The brake: when it stops what hurts requests, what it learns of that, and that it lets go again."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runlist.policies.parts.brake import Brake

# As they are to be: taken from the code they would hold whatever it says.
ALLOWED = 0.006
EASES = 0.98
EASIER = 0.8
FOLLOW_S = 0.25
MOST = 1.5
TRIPS = 0.35
WINDOW_S = 1.0

LOOK_S = 0.05
EASED_S = math.log(1 / MOST) / math.log(EASES)
"""So long it takes until the most that is believed of a release has become what is allowed."""


class Service:
    """Tells a brake of requests at a steady rate, and lets it look as often as the policy does while it is on."""

    def __init__(self) -> None:
        self.now = 10.0
        self.looked = self.now
        self.brake = Brake(self.now)

    def run(self, seconds: float, rate: float, late: Callable[[int], bool] = lambda number: False) -> list[float]:
        """Pass some time with `rate` requests a second, of which those are late that `late` says by their number.
        Returns when the brake was put on.
        """
        put_on, end = [], self.now + seconds
        begin, number = self.now, 0
        while self.now < end:
            request_at = begin + (number + 1) / rate if rate else end
            look_at = self.looked + LOOK_S
            self.now = min(request_at, look_at, end)
            if self.now == look_at:
                self.looked = look_at
                self.brake.look(look_at)
            if self.now == request_at and rate:
                if self.brake.add(late(number), self.now):
                    put_on.append(self.now)
                number += 1
        return put_on

    def trip(self, late: int = 0) -> None:
        """Let a request after the other be late until the brake is on, and then some more."""
        while not self.brake.add(True, self.now):
            pass
        for _ in range(late):
            assert not self.brake.add(True, self.now)  # it is on already


def always(number: int) -> bool:
    return True


# -- putting it on ---------------------------------------------------------------------------------


def test_nothing_counts_in_the_first_second() -> None:
    """Those requests began before what stops the others could have done anything."""
    service = Service()
    assert service.run(WINDOW_S - 0.005, 100, late=always) == []
    service.run(0.010, 0)
    assert service.brake.add(True, service.now)


@pytest.mark.parametrize("rate", [10, 100, 1_000, 5_000])
def test_it_is_put_on_before_a_hundredth_is_late(rate: int) -> None:
    service = Service()
    assert service.run(2.0, rate) == []
    late = 1
    while not service.brake.add(True, service.now):
        late += 1
    assert late == math.ceil(max(1.0, TRIPS * ALLOWED * rate))
    assert late <= max(1.0, 0.01 * rate)
    assert service.brake.on


def test_few_late_requests_are_no_reason() -> None:
    every = round(2 / (TRIPS * ALLOWED))
    assert Service().run(20.0, 1_000, late=lambda number: number % every == 0) == []


def test_what_is_late_while_it_is_on_does_not_put_it_on_again() -> None:
    service = Service()
    service.run(2.0, 1_000)
    assert len(service.run(FOLLOW_S, 1_000, late=always)) == 1


# -- releasing it ----------------------------------------------------------------------------------


def test_it_stays_on_while_more_may_follow() -> None:
    service = Service()
    service.run(2.0, 1_000)
    service.trip()
    service.run(FOLLOW_S - 0.01, 1_000)
    assert service.brake.on
    service.run(2 * LOOK_S, 1_000)
    assert not service.brake.on


def test_it_is_released_only_with_room_for_what_a_release_costs() -> None:
    """Five late ones of six that are allowed: until they are forgotten there is no room for five more."""
    service = Service()
    service.run(2.0, 1_000)
    service.trip(late=5 - math.ceil(TRIPS * ALLOWED * 1_000))
    service.run(WINDOW_S - LOOK_S, 1_000)
    assert service.brake.on
    service.run(3 * LOOK_S, 1_000)
    assert not service.brake.on


def test_what_is_late_long_after_it_was_put_on_is_not_the_doing_of_a_release() -> None:
    """It has to be forgotten, too, but nothing else is learnt from it."""
    service = Service()
    service.run(2.0, 1_000)
    service.trip()
    service.run(FOLLOW_S - LOOK_S, 1_000)
    for _ in range(2):
        service.brake.add(True, service.now)
    service.run(0.5, 1_000)
    assert service.brake.on
    for _ in range(100):
        service.brake.add(True, service.now)
    service.run(WINDOW_S - LOOK_S, 1_000)
    assert service.brake.on
    service.run(3 * LOOK_S, 1_000)
    assert not service.brake.on


def test_what_a_release_costs_counts_less_with_time() -> None:
    """Hundreds were late: no more than MOST of what is allowed is believed, and that eases."""
    service = Service()
    service.run(2.0, 1_000)
    service.run(FOLLOW_S, 1_000, late=always)
    service.run(EASED_S - 0.1, 1_000)
    assert service.brake.on
    service.run(0.3, 1_000)
    assert not service.brake.on


def test_with_fewer_requests_what_was_learnt_is_forgotten() -> None:
    service = Service()
    service.run(2.0, 1_000)
    service.run(FOLLOW_S, 1_000, late=always)
    service.run(WINDOW_S + FOLLOW_S + 2 * LOOK_S, 0.9 * EASIER * 1_000)
    assert not service.brake.on


def test_it_learns_what_a_release_costs() -> None:
    """With five late requests after each release, out of a thousand a second, the next one waits until they are
    forgotten; and never is much more than a hundredth late.
    """
    brake, late, releases, now = Brake(10.0), [], 0, 10.0
    running = 0
    for step in range(20_000):
        now = 10.0 + step * 1e-3
        if brake.on:
            brake.look(now)
            if not brake.on:
                releases, running = releases + 1, 0
        running += not brake.on
        hurt = step > 2_000 and running > 0 and (not brake.on or len(late) % 5 != 0)
        if hurt:
            late.append(now)
        brake.add(hurt, now)
    assert releases > 5
    assert all(sum(start < at <= start + 1 for at in late) <= 10 for start in range(14, 30))


_part = st.floats(0.0, 1.0)
_spells = st.lists(st.tuples(st.floats(0.01, 1.5), st.floats(0.0, 400.0), _part), min_size=1, max_size=8)
"""Seconds, requests a second, and what part of them are late."""


@settings(max_examples=30, deadline=None)
@given(_spells, st.sampled_from([0, 0.5, 30, 400]), st.randoms(use_true_random=False))
def test_it_never_stays_on_for_good(
    spells: list[tuple[float, float, float]], calm_rate: float, rnd: random.Random
) -> None:
    """Whatever happened before: once nothing is late any more, it is released, and stays so."""

    def some(part: float) -> Callable[[int], bool]:
        return lambda number: rnd.random() < part

    service = Service()
    for seconds, rate, late in spells:
        service.run(seconds, rate, some(late))
    assert service.run(FOLLOW_S + WINDOW_S + EASED_S + 2 * LOOK_S, calm_rate) == []
    assert not service.brake.on
    assert service.run(2.0, calm_rate) == []
    assert not service.brake.on

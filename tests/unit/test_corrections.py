"""Putting back what processes changed: its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runlist.daemon.tree import corrections
from runlist.daemon.tree.checks import Checks
from runlist.daemon.tree.corrections import Corrections


def test_after_its_end_nothing_is_put_back() -> None:
    seen: list[int | None] = []

    def assert_all(but: int | None) -> Iterator[None]:
        seen.append(but)
        yield

    async def run() -> None:
        checks = cast("Checks", SimpleNamespace(assert_all=assert_all, correct=lambda pid, off: seen.append(pid)))
        corrections = Corrections(checks)
        corrections.look_at(7)
        assert seen == [7]
        corrections.look_at(7)  # it is not due yet
        assert corrections.is_due(7)
        corrections.set_all_right(but=8)
        corrections.close()
        await asyncio.sleep(0.05)
        assert seen == [7]

    asyncio.run(run())


class World:
    """A clock, a loop that does what is due as time passes, and looks that take `cost_s`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.cost_s = 1000.0, 0.0
        self.looked: list[tuple[int, float]] = []  # at whom, and after how many milliseconds
        self.planned: list[tuple[float, Any]] = []
        monkeypatch.setattr(corrections, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(corrections, "asyncio", SimpleNamespace(get_running_loop=lambda: self))
        self.corrections = Corrections(cast("Checks", self))

    def correct(self, pid: int, *, off: bool) -> None:
        assert off
        self.looked.append((pid, self.after_ms))
        self.now += self.cost_s

    @property
    def after_ms(self) -> float:
        return round(1e3 * (self.now - 1000.0), 3)

    def call_later(self, after_s: float, call: Any) -> Any:
        one = (self.now + after_s, call)
        self.planned.append(one)
        return SimpleNamespace(cancel=lambda: one in self.planned and self.planned.remove(one))

    def at(self, after_ms: float, *pids: int) -> None:
        """So late slices of these were changed."""
        until = 1000.0 + after_ms / 1e3
        while self.planned and (due := min(self.planned))[0] <= until:
            self.planned.remove(due)
            self.now = max(self.now, due[0])
            due[1]()
        self.now = max(self.now, until)
        for pid in pids:
            self.corrections.look_at(pid)


def test_slices_are_put_back_for_two_milliseconds_in_a_row_and_not_for_four_times_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.cost_s = 0.0015
    world.at(0.0, 1)
    world.at(1.6, 2, 3, 4)
    world.at(100.0)
    assert world.looked == [(1, 0.0), (2, 7.5), (3, 9.0), (4, 22.5)]


def test_who_changes_its_slices_on_and_on_has_them_put_back_every_five_milliseconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.cost_s = 0.0002
    world.at(0.0, 6)
    world.at(0.3, 6)
    world.at(2.0, 7)
    world.at(2.5, 7)
    world.at(3.5, 8)
    world.at(100.0)
    assert world.looked == [(6, 0.0), (7, 2.0), (8, 3.5), (6, 5.2), (7, 7.2)]


def test_nothing_is_kept_of_who_ended_before_a_look_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.at(0, 7)
    world.at(1, 7)  # due in 4 ms
    world.corrections.forget(7)
    world.at(20)
    assert world.looked == [(7, 0.0)]
    assert world.corrections._corrected == {}

"""Which processes a command leaves to its tree when it ends: no more than one user may have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from runlist.daemon.tree import processes
from runlist.daemon.tree.processes import Processes

ENDED, DETACHED, OURS, ANOTHERS = 13, 4, 5, 6


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(processes, "MAX_HEIRS", 3)
        monkeypatch.setattr(processes, "start_of", lambda pid: None if pid == ENDED else 100 * pid)
        self.root: Any = SimpleNamespace(pid=1, uid=1000, heirs={}, excluded={DETACHED})
        self.other: Any = SimpleNamespace(pid=2, uid=1000, heirs={ANOTHERS: 600}, excluded=set())
        self.stranger: Any = SimpleNamespace(pid=3, uid=1001, heirs={7: 700, 8: 800}, excluded=set())
        self.books: Any = SimpleNamespace(
            roots={each.pid: each for each in (self.root, self.other, self.stranger)},
            _heirs={ANOTHERS: self.other},
            _is_same_user=lambda one, other: one == other,
            is_ours=lambda pid: pid == OURS,
        )

    def inherit(self, *pids: int) -> list[int]:
        """Of how many it was said that they are left out, each time."""
        with capture_logs() as logs:
            Processes.inherit(self.books, self.root, pids)
        return [log["left_out"] for log in logs]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_those_that_are_left_are_of_its_tree_but_who_is_another_s_or_was_let_go(world: World) -> None:
    assert world.inherit(1, DETACHED, OURS, ANOTHERS, ENDED, 20, 21) == []
    assert world.root.heirs == {20: 2000, 21: 2100}
    assert world.books._heirs == {ANOTHERS: world.other, 20: world.root, 21: world.root}


def test_there_are_no_more_than_one_user_may_have_in_all_trees(world: World) -> None:
    assert world.inherit(20, 21, 22, 23) == [2]
    assert world.root.heirs == {20: 2000, 21: 2100}


def test_those_that_are_of_it_already_are_not_left_out(world: World) -> None:
    """Each look tells of them again."""
    world.inherit(20, 21)
    assert world.inherit(20, 21) == []
    assert world.inherit(20, 21, DETACHED, 22) == [1]

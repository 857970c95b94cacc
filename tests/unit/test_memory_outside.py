"""Who holds memory in a tree and is not managed: looked for, and shown after a while."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from tests.fixtures.memory_world import PID, GiB, World

# As they are to be: taken from the code they would hold whatever it says.
PATIENCE_S = 2.0
SEARCHES = 5


def test_who_is_not_managed_is_shown_after_a_while(tree: World, later: Callable[[float], None]) -> None:
    tree.managed.clear()
    tree.look()
    assert tree.holding.outside == {}
    later(PATIENCE_S)
    tree.left[PID] = "no right"
    tree.look()
    (shown,) = tree.holding.outside.values()
    assert (shown.reached_by, shown.remark) == ("", "not managed: no right")
    tree.managed[PID] = tree.process
    assert tree.holding.outside == {}  # at once, or `ps` would tell of it twice
    tree.look()
    assert tree.holding.outside == {}


def test_who_holds_memory_and_is_not_managed_is_looked_for(tree: World) -> None:
    """Nobody else looks at a process whose number of open files stays as it was."""
    tree.quota.set_limit(5 * GiB, keeps=False)
    tree.look()
    assert tree.looked_for == []
    tree.managed.clear()
    for _ in range(20):
        tree.look()
    assert tree.looked_for == [PID] * SEARCHES
    tree.managed[PID] = tree.process
    tree.look()
    del tree.managed[PID]  # it let go of the GPU, and came again
    tree.look()
    assert tree.looked_for == [PID] * (SEARCHES + 1)


def test_who_holds_too_much_is_looked_for_as_long_as_it_does(tree: World) -> None:
    tree.quota.set_limit(2 * GiB, keeps=False)
    tree.managed.clear()
    tree.left[PID] = "no right"
    for looks in range(1, 20):
        tree.look()
        assert tree.looked_for == [PID] * looks
    tree.held[PID] = GiB
    tree.look()
    assert tree.looked_for == [PID] * 19


def test_nobody_looks_for_who_cannot_be_reached_or_was_detached(tree: World) -> None:
    tree.managed.clear()
    tree.left[PID] = "no right"
    tree.look()
    tree.left.clear()
    tree.quota.set_limit(2 * GiB, keeps=False)
    tree.root.excluded.add(PID)
    tree.look()
    assert tree.looked_for == []


def test_nobody_looks_for_who_has_ended(tree: World) -> None:
    """It may have left more than the limit to somebody, which stays so."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        tree.quota.set_limit(2 * GiB, keeps=False)
        tree.managed.clear()
        tree.held = {process.pid: 3 * GiB}
        tree.look()
        assert tree.looked_for == [process.pid]
        process.kill()
    tree.look()
    assert tree.looked_for == [process.pid]


def test_those_detached_by_name_are_not_shown(tree: World, later: Callable[[float], None]) -> None:
    tree.managed.clear()
    tree.root.excluded.add(PID)
    tree.look()
    later(9)
    tree.look()
    assert tree.holding.outside == {}

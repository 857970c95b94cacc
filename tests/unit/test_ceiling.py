"""What a tree may hold on a GPU, limit by limit and look by look."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlist.daemon.memory import ceiling
from runlist.daemon.memory.ceiling import Ceiling

# As they are to be: taken from the code they would hold whatever it says.
LOOKS = 16
OFTEN = 6
SETTLE_S = 0.3
STAYS_S = 10.0
TOLERANCE = 8 << 20

MiB = 1 << 20
LIMIT = 100 * MiB


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(ceiling, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def move(seconds: float) -> None:
        clock.now += seconds

    return move


def limited(limit: int | None = LIMIT) -> Ceiling:
    made = Ceiling()
    made.change(limit, keeps=False)
    return made


@pytest.mark.parametrize(("held", "over"), [(0, False), (LIMIT + TOLERANCE, False), (LIMIT + TOLERANCE + 1, True)])
def test_over_is_what_is_beyond_the_limit_and_the_tolerance(held: int, over: bool) -> None:
    assert limited().is_broken(LIMIT, held) is over
    assert limited().look(LIMIT, held) is over


def test_who_was_over_stays_so_until_it_is_within_its_limit() -> None:
    tree = limited()
    assert [tree.look(LIMIT, held * MiB) for held in (400, 120, 109, 108, 101)] == [True, True, True, False, False]
    assert not tree.is_broken(LIMIT, LIMIT)


def test_without_a_limit_nothing_is_over() -> None:
    tree = limited(None)
    assert not tree.look(None, 1 << 60)
    tree = limited()
    assert tree.look(LIMIT, 1 << 40)
    tree.change(None, keeps=True)
    assert not tree.look(None, 1 << 40)


def test_a_look_that_is_not_sure_begins_nothing_and_ends_nothing() -> None:
    tree = limited()
    assert not tree.look(LIMIT, 2 * LIMIT, sure=False)
    assert tree.look(LIMIT, 2 * LIMIT)
    assert tree.look(LIMIT, 2 * LIMIT, sure=False)
    assert not tree.look(LIMIT, LIMIT, sure=False)


def test_what_a_tree_had_when_its_limit_was_lowered_it_keeps_and_no_more(later: Callable[[float], None]) -> None:
    tree = limited(200 * MiB)
    tree.change(LIMIT, keeps=True)
    assert not tree.look(LIMIT, 190 * MiB)  # what was asked for before may still come
    later(SETTLE_S)
    assert not tree.look(LIMIT, 180 * MiB)
    assert tree.is_broken(LIMIT, 189 * MiB)
    assert not tree.look(LIMIT, 150 * MiB)  # what it gave back it has no more
    assert tree.look(LIMIT, 170 * MiB)
    assert tree.look(LIMIT, 150 * MiB)
    assert not tree.look(LIMIT, 90 * MiB)


def test_a_limit_that_is_lowered_allows_no_more_than_the_one_before() -> None:
    tree = limited(200 * MiB)
    tree.change(LIMIT, keeps=True)
    assert tree.look(LIMIT, 300 * MiB)


def test_one_that_had_no_limit_keeps_what_it_has(later: Callable[[float], None]) -> None:
    tree = Ceiling()
    tree.change(LIMIT, keeps=True)
    assert not tree.look(LIMIT, 900 * MiB)
    later(SETTLE_S)
    assert [tree.look(LIMIT, held * MiB) for held in (800, 700, 750)] == [False, False, True]


def test_a_higher_limit_counts_at_once() -> None:
    tree = limited()
    assert tree.look(LIMIT, 150 * MiB)
    tree.change(200 * MiB, keeps=True)
    assert not tree.look(200 * MiB, 150 * MiB)
    assert not tree.look(200 * MiB, 200 * MiB)


@given(st.lists(st.integers(0, LIMIT + TOLERANCE)))
def test_who_never_has_more_is_never_over(held: list[int]) -> None:
    tree = limited()
    assert not any(tree.look(LIMIT, each) for each in held)


@given(st.lists(st.integers(0, 1 << 64)))
def test_over_is_whatever_was_beyond_and_has_not_been_within_since(held: list[int]) -> None:
    tree = limited()
    for each in held:
        assert tree.look(LIMIT, each) is (each > LIMIT + TOLERANCE)


def test_what_a_tree_frees_at_once_after_its_limit_was_lowered_it_may_have_again(
    later: Callable[[float], None],
) -> None:
    """It is asked to free memory just then, and the next moment it may take some back."""
    one = limited(None)
    assert not one.look(None, 3 * LIMIT)
    one.change(LIMIT, keeps=True)
    held = [3 * LIMIT, 2 * LIMIT, 3 * LIMIT]
    assert not any(one.look(LIMIT, octets) for octets in held)
    later(SETTLE_S + 0.1)
    assert not one.look(LIMIT, 2 * LIMIT)
    assert one.look(LIMIT, 3 * LIMIT)  # from then on less is never more again
    assert one.look(LIMIT, 2 * LIMIT)
    assert not one.look(LIMIT, LIMIT)


def test_who_is_over_again_and_again_is_over_for_a_while(later: Callable[[float], None]) -> None:
    """Each time too shortly for a look to be sure of it."""
    tree = limited()
    for number in range(OFTEN):
        assert not tree.over
        assert tree.is_often_broken(LIMIT, 4 * LIMIT) is (number == OFTEN - 1)
        tree.look(LIMIT, 0, sure=False)
        tree.is_often_broken(LIMIT, 0)
    assert tree.look(LIMIT, 0)
    later(STAYS_S - 0.1)
    assert tree.look(LIMIT, 0)
    later(0.1)
    assert not tree.look(LIMIT, 0)


def test_who_is_over_seldom_or_is_given_another_limit_is_not() -> None:
    """What one process gives and another takes may be seen twice."""
    tree = limited()
    for number in range(100):
        assert not tree.is_often_broken(LIMIT, 4 * LIMIT if number % LOOKS < OFTEN - 1 else 0)
    tree = limited()
    assert [tree.is_often_broken(LIMIT, 4 * LIMIT) for _ in range(OFTEN)][-1]
    tree.change(LIMIT, keeps=False)
    assert not tree.look(LIMIT, 0)

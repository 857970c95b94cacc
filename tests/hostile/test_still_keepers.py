"""A keeper that stands still: stopped by hand, frozen, or held by the kernel. The daemon waits for it no longer than
for one that is slow, and another one takes its place, as nobody else would put anything back.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from runlist.daemon.undo import link
from runlist.daemon.undo.link import MOST_LOOKS, KeeperLink
from tests.fixtures.adoption import until
from tests.unit.test_keeping import AS_FOUND, Kept, linked, plane

__all__ = ["plane"]


@pytest.mark.parametrize("told", [2, 2000])
def test_another_takes_the_place_of_one_that_is_stopped(
    plane: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: int
) -> None:
    monkeypatch.setattr(link, "PATIENCE_S", 0.05)
    monkeypatch.setattr(link, "START_PATIENCE_S", 0.05)
    monkeypatch.setattr(link, "_ROOM", 1 << 16)
    kept = [Kept(tmp_path / name) for name in "ab"]

    async def test(keeper: KeeperLink, hopeless: list[str]) -> None:
        first = keeper.pid
        key = keeper.guard(os.getpid(), kept[0])  # type: ignore[arg-type]
        os.kill(first, signal.SIGSTOP)
        await until(stat_says(first, "T"))
        keeper.guard(os.getpid(), kept[1])  # type: ignore[arg-type]
        monkeypatch.setattr(link, "START_PATIENCE_S", 60.0)  # its successor starts as slowly as it may
        monkeypatch.setattr(keeper, "_started", float("-inf"))
        for _ in range(told):
            keeper.renew(key)
        for _ in range(MOST_LOOKS + 2):
            keeper.look()
        await until(lambda: keeper.pid != first)
        assert hopeless == []

    linked(plane, test)
    assert [one.state for one in kept] == [AS_FOUND, AS_FOUND]
    for one in kept:
        one.close()


def test_one_that_is_stopped_for_a_moment_stays(plane: str) -> None:
    async def test(keeper: KeeperLink, hopeless: list[str]) -> None:
        first = keeper.pid
        os.kill(first, signal.SIGSTOP)
        await until(stat_says(first, "T"))
        for _ in range(MOST_LOOKS - 1):
            keeper.look()
        os.kill(first, signal.SIGCONT)
        await until(stat_says(first, "SR"))
        for _ in range(2):
            keeper.look()
        assert keeper.pid == first

    linked(plane, test)


def stat_says(pid: int, states: str) -> Callable[[], bool]:
    return lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in states

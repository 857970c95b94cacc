"""Processes that have work and are not managed: who looks again, and asks the rules again."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from runlist.daemon.tasks.lending import Lending
from runlist.daemon.tasks.managed import Root
from runlist.daemon.tree import search
from runlist.proc import patience, process, words
from tests.fixtures.adoption import OF_CHILD, child, own_usage
from tests.fixtures.daemon import PATIENCE_S
from tests.fixtures.manager import Managed, a_daemon
from tests.unit.test_search import RULES, TRIES, borrowing, scans, scans_until

pytestmark = pytest.mark.usefixtures("own_usage")
__all__ = ["own_usage"]


def test_one_that_came_to_a_gpu_with_as_many_files_as_before_is_found_by_the_drivers_list() -> None:
    """It may have closed as many as it opened, and looks come before there is a channel group."""

    async def test(world: Managed) -> None:
        with child() as one, child() as other, child() as strange:
            root = world.root(one)
            root.excluded.add(other)
            await scans(world)
            for pid in (one, other, strange):
                world.tenant(pid, OF_CHILD)
            await scans(world)
            assert not world.processes.managed
            world.census.pids = lambda: {one, other, strange}
            await world.search.seek(listed=False)  # the kernel tells
            await scans(world)
            assert not world.processes.managed
            await world.search.seek(listed=True)
            await scans_until(world, lambda: world.processes.managed)
            assert list(world.processes.managed) == [one]

    a_daemon(test)


def test_the_drivers_list_is_not_asked_for_where_all_are_managed() -> None:
    """It takes 14 ms, which is a seventh of what an idle daemon may take."""

    async def test(world: Managed) -> None:
        asked: list[set[int]] = []

        def listed() -> set[int]:
            asked.append(set(world.processes.managed))
            return set()

        world.census.pids = listed
        with child() as one:
            root = world.root(one)
            await scans(world)
            world.tenant(one, OF_CHILD)
            await world.search.everything_of(root)
            assert list(world.processes.managed) == [one]
            await world.search.seek(listed=True)
            assert asked == []
            world.processes.forget(world.processes.managed[one], restore=True)
            await world.search.seek(listed=True)
            assert asked == [set()]

    a_daemon(test)


def test_one_that_lent_a_file_before_it_had_work_is_looked_at_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A busy machine may have it make its first channel group seconds later, and all files are open by then."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: clock.now))
    looks: list[float] = []

    async def test(world: Managed) -> None:
        monkeypatch.setattr(world.search, "look_soon", lambda pid: looks.append(clock.now - 100.0))
        with child() as one:
            world.root(one)
            monkeypatch.setattr(Lending, "lenders", {one})
            await world.search.scan()
            for _ in range(300):
                await world.search.seek(listed=True)
                clock.now += 1.0
            assert looks == [0, 1, 3, 7, 15, 31, 63, 127, 191, 255]
            looks.clear()
            world.processes.managed[one] = SimpleNamespace(root=world.processes.roots[one])  # type: ignore[assignment]
            await world.search.seek(listed=True)
            del world.processes.managed[one]
            assert looks == []
            await world.search.seek(listed=True)
            assert looks == [300]  # it closed what it had, and is as one that is new

    a_daemon(test)


def test_a_process_that_did_not_tell_its_words_is_asked_again_and_no_rule_passes_it_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory was locked, or another of its user's was."""
    (tmp_path / "rules.toml").write_text(RULES)
    answers, read = threading.Event(), words.read_bytes
    monkeypatch.setattr(patience, "_silent", {})
    monkeypatch.setattr(patience, "SILENCE_S", 0.1)
    monkeypatch.setattr(search, "ASKED_AGAIN_S", 0.1)

    def locked(pid: int, name: str, limit: int) -> bytes:
        answers.wait(PATIENCE_S)
        return read(pid, name, limit)

    async def test(world: Managed) -> None:
        borrowing(world, monkeypatch)
        with child() as one:
            world.tree([one])
            world.census.pids = lambda: {one}
            monkeypatch.setattr(words, "read_bytes", locked)
            await world.search.scan()
            assert world.processes.roots == {}
            answers.set()
            await scans_until(world, lambda: world.processes.roots)
            assert list(world.processes.roots) == [one]

    a_daemon(test, tmp_path / "rules.toml")


def test_looks_without_room_for_a_descriptor_do_not_count_and_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Managed) -> None:
        looks: list[int] = []
        adopt = world.adoption.adopt

        def none_left(pid: int) -> int | None:
            raise OSError(errno.EMFILE, "Too many open files")

        async def fails(root: Root, pid: int, *, new_only: bool) -> None:
            looks.append(pid)
            if len(looks) <= TRIES + 2:
                none_left(pid)
            monkeypatch.setattr(search, "owner_of", process.owner_of)
            await adopt(root, pid, new_only=new_only)

        with child() as one:
            world.tree([one])
            monkeypatch.setattr(world.adoption, "adopt", fails)
            monkeypatch.setattr(search, "owner_of", none_left)
            world.root()
            await scans_until(world, lambda: world.processes.managed)
            assert (list(world.processes.managed), world.processes.left) == ([one], {})

    a_daemon(test)

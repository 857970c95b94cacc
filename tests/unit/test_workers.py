"""Looks in threads: one that hangs, or a user with many, keeps nobody else waiting; nothing that was found is lost."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from runlist.daemon.tree import workers
from runlist.daemon.tree.workers import Workers
from runlist.errors import RunlistError
from runlist.proc import owners, patience
from runlist.proc.owners import Owner
from tests.fixtures.daemon import wait_for

# As they are to be: taken from the code they would hold whatever it says.
LOOKS_OF_ONE = 2
MAX_STUCK = 8

ALICE, BOB = Owner(1001), Owner(0, "a" * 64)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Looks that wait for it go on at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def in_a_loop(test: Callable[[Workers], Awaitable[None]]) -> None:
    async def run() -> None:
        await test(Workers())

    asyncio.run(run())


def test_a_look_returns_or_raises_what_it_finds() -> None:
    async def test(made: Workers) -> None:
        assert await made.run(ALICE, 1, lambda: lambda: threading.current_thread() is threading.main_thread()) is False
        with pytest.raises(ZeroDivisionError):
            await made.run(ALICE, 1, lambda: lambda: 1 // 0)

    in_a_loop(test)


def test_two_looks_of_a_user_run_and_one_of_a_tree(gate: threading.Event) -> None:
    async def test(made: Workers) -> None:
        running: list[int] = []

        def look(tree: int) -> Callable[[], Callable[[], bool]]:
            def prepare() -> Callable[[], bool]:
                running.append(tree)
                return gate.wait

            return prepare

        looks = [asyncio.create_task(made.run(ALICE, tree, look(tree))) for tree in (1, 1, 2, 3, 4)]
        await asyncio.to_thread(wait_for, lambda: len(running) >= LOOKS_OF_ONE)
        await asyncio.sleep(0.05)
        assert len(running) == LOOKS_OF_ONE
        assert len(set(running)) == len(running)
        assert await asyncio.wait_for(made.run(BOB, 9, lambda: lambda: 7), 60) == 7
        gate.set()
        assert all(await asyncio.gather(*looks))
        assert sorted(running) == [1, 1, 2, 3, 4]

    in_a_loop(test)


def test_looks_that_hang_are_left_alone_and_not_without_end(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "PATIENCE_S", 0.02)

    async def test(made: Workers) -> None:
        discarded: list[bool] = []
        for tree in range(MAX_STUCK):
            with pytest.raises(RunlistError, match="takes too long"):
                await made.run(ALICE, tree, lambda: gate.wait, discarded.append)
        with pytest.raises(RunlistError, match=f"{MAX_STUCK} processes of user 1001 do"):
            await made.run(ALICE, 99, lambda: lambda: 1)
        monkeypatch.setattr(workers, "PATIENCE_S", 60.0)
        assert await made.run(BOB, 100, lambda: lambda: 1) == 1
        assert not discarded
        gate.set()
        await asyncio.to_thread(wait_for, lambda: len(discarded) == MAX_STUCK)
        assert await made.run(ALICE, 99, lambda: lambda: 1) == 1

    in_a_loop(test)


def test_what_nobody_waits_for_any_more_is_discarded(gate: threading.Event) -> None:
    async def test(made: Workers) -> None:
        discarded: list[str] = []
        begun = threading.Event()

        def look() -> str:
            begun.set()
            gate.wait()
            return "a file"

        job = asyncio.create_task(made.run(ALICE, 1, lambda: look, discarded.append))
        waits = asyncio.create_task(made.run(ALICE, 1, lambda: look, discarded.append))
        await asyncio.to_thread(begun.wait)
        for one in (waits, job):
            one.cancel()
            with pytest.raises(asyncio.CancelledError):
                await one
        gate.set()
        await asyncio.to_thread(wait_for, lambda: discarded)
        await asyncio.sleep(0.05)
        assert discarded == ["a file"]  # the other had not begun

    in_a_loop(test)


def test_who_lets_us_wait_is_not_asked_for_a_while(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor while the question is open."""
    monkeypatch.setattr(patience, "_silent", {})
    monkeypatch.setattr(patience, "SILENCE_S", 0.5)
    assert patience.ask(os.getpid(), lambda: "here", "nothing") == "here"
    started = time.monotonic()
    assert patience.ask(os.getpid(), lambda: str(gate.wait()), "nothing") == "nothing"
    assert time.monotonic() - started >= patience.PATIENCE_S
    assert patience.ask(os.getpid(), lambda: "here", "nothing") == "nothing"
    time.sleep(2 * patience.SILENCE_S)
    assert patience.ask(os.getpid(), lambda: "here", "nothing") == "nothing"
    gate.set()
    wait_for(lambda: patience.ask(os.getpid(), lambda: "here", "nothing") == "here")


def test_whose_question_has_no_processor_is_not_taken_for_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is busy, rules would not match what any of its user's processes begin in the next 30 s."""
    monkeypatch.setattr(patience, "_silent", {})
    monkeypatch.setattr(patience, "without_processor_s", lambda _: 10.0)

    def late() -> str:
        time.sleep(2.5 * patience.PATIENCE_S)
        return "here"

    assert patience.ask(os.getpid(), late, "nothing") == "here"
    monkeypatch.setattr(patience, "LONGEST_S", patience.PATIENCE_S)
    assert patience.ask(os.getpid(), late, "nothing") == "nothing"


def test_a_question_that_fails_or_is_about_nobody_has_no_answer() -> None:
    def fail() -> str:
        raise PermissionError

    assert patience.ask(os.getpid(), fail, "nothing") == "nothing"
    assert patience.ask(1 << 22, lambda: "here", "nothing") == "nothing"


@pytest.mark.parametrize("uid", [0, 1001])
def test_processes_are_of_the_containers_that_root_made(monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    """Strangers to each other, who run as root or as the same user. A user's own containers are that user's."""
    monkeypatch.setattr(owners, "cgroup_of", lambda pid: (f"/pod/{pid}", str(pid) * 64))
    assert Owner.of(1, uid) != Owner.of(2, uid)
    assert str(Owner.of(1, uid)) == f"user {uid} in container 111111111111"
    monkeypatch.setattr(owners, "cgroup_of", lambda pid: (f"/user/{pid}", f"1001:{str(pid) * 64}"))
    assert (Owner.of(1, uid) == Owner.of(2, uid)) == (uid != 0)


def test_an_owner_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "cgroup_of", lambda pid: (f"/pod/{pid}", str(pid) * 64))
    assert str(Owner.of(1, 0)) == "user 0 in container 111111111111"

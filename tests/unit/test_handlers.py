"""What a request is answered when what comes after it finds no room."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from runlist import wire
from runlist.daemon.requests.handlers import Handlers
from runlist.daemon.requests.turns import Turns
from runlist.errors import ExitCode
from runlist.proc.exhaustion import NO_THREAD

ROOT = (4711, 0)


def answer(error: Exception) -> tuple[wire.Message, list[int]]:
    """To a request of root to suspend a process, where the census fails so; and which were suspended."""
    suspended: list[int] = []

    async def refresh(kept_s: float) -> None:
        raise error

    def suspend(pid: int, suspend: bool, uid: int) -> list[Any]:
        suspended.append(pid)
        return []

    manager: Any = SimpleNamespace(
        census=SimpleNamespace(refresh=refresh),
        gpus=SimpleNamespace(read_usage=lambda _: None),
        kernel=SimpleNamespace(made_by=None),
        suspend=suspend,
    )
    unused: Any = None

    async def ask() -> wire.Message:
        return await Handlers(ROOT, manager, unused, unused, unused, asyncio.Event(), Turns()).answer(wire.Suspend(7))

    return asyncio.run(ask()), suspended


@pytest.mark.parametrize("error", [RuntimeError(NO_THREAD), MemoryError(), OSError(24, "Too many open files")])
def test_what_is_done_is_not_refused_for_want_of_room_to_say_more(error: Exception) -> None:
    told, suspended = answer(error)
    assert isinstance(told, wire.Tasks)
    assert suspended == [7]


def test_other_faults_are_told() -> None:
    told, _ = answer(RuntimeError("a mistake"))
    assert isinstance(told, wire.Failure)
    assert told.exit_code == ExitCode.FAILED

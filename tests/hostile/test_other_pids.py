"""Commands that are given in a pid namespace of their own, as in a sandbox: a number there is another process' here."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from runlist import wire
from runlist.daemon.requests.handlers import Handlers
from runlist.daemon.requests.turns import Turns
from runlist.errors import ExitCode
from runlist.proc.process import descendants
from tests.fixtures.daemon import needs_root, wait_for

pytestmark = needs_root
THEIRS = 7


@pytest.fixture
def peer() -> Iterator[int]:
    """A process in a namespace below ours, as it is known here."""
    with subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "sleep", "60"]) as process:
        wait_for(lambda: len(descendants([process.pid])[process.pid]) == 2)
        yield descendants([process.pid])[process.pid][1]
        process.kill()


def asked(peer: int, message: wire.Message) -> tuple[wire.Message, list[int]]:
    """The answer to a request of this peer, and about which processes the daemon was asked."""
    about: list[int] = []

    async def note(pid: int, *_: object) -> Any:
        about.append(pid)
        return SimpleNamespace(tasks=[], notes=[])

    async def begin(pid: int, *_: object) -> list[str]:
        about.append(pid)
        return []

    async def refresh(kept_s: float) -> None:
        pass

    manager: Any = SimpleNamespace(
        attach=note,
        detach=lambda pid, _: about.append(pid) or [],
        launches=SimpleNamespace(begin=begin),
        census=SimpleNamespace(refresh=refresh),
        gpus=None,
        kernel=SimpleNamespace(made_by=None),
    )
    unused: Any = None

    async def ask() -> wire.Message:
        return await Handlers((peer, 0), manager, unused, unused, unused, asyncio.Event(), Turns()).answer(message)

    return asyncio.run(ask()), about


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("message", [wire.Attach(THEIRS, {}), wire.Detach(THEIRS)])
def test_nothing_is_done_to_who_has_that_number_here(peer: int, message: wire.Message, known: bool) -> None:
    told, about = asked(peer if known else 0, message)
    assert isinstance(told, wire.Failure)
    assert (told.exit_code, about) == (ExitCode.USAGE, [])
    assert "process ids are others here" in told.message


def test_what_it_runs_is_below_itself(peer: int) -> None:
    _, about = asked(peer, wire.Launch(THEIRS, {}))
    assert about == [peer]


@pytest.mark.parametrize("message", [wire.Attach(THEIRS, {}), wire.Detach(THEIRS), wire.Launch(THEIRS, {})])
def test_numbers_of_our_own_namespace_are_what_they_are(message: wire.Message) -> None:
    assert asked(os.getpid(), message)[1] == [THEIRS]

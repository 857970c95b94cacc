"""That no open of a GPU is missed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon import __main__ as module
from tests.unit.test_daemon_main import PATIENCE_S, Watch


def test_what_is_opened_just_before_a_look_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was passed over for 10 s where nobody had opened anything before that look."""
    watch = Watch()
    monkeypatch.setattr(module, "OpenWatch", lambda paths: watch)
    monkeypatch.setattr(module, "FIRST_LOOK_S", 0.001)
    monkeypatch.setattr(module, "SCAN_EVERY_S", 600.0)

    class Opened(asyncio.Event):
        looks = 0

        def clear(self) -> None:
            super().clear()
            self.looks += 1
            if self.looks == 1:
                watch.opens()

    async def main() -> None:
        looked, begun = asyncio.Event(), asyncio.Event()

        async def scan(*, walk: bool) -> None:
            if walk:
                looked.set()

        begun.set()
        daemon: Any = SimpleNamespace(
            plane=SimpleNamespace(watch_paths=list),
            opened=Opened(),
            processes=SimpleNamespace(roots={1: object()}),
            placement=SimpleNamespace(rules=SimpleNamespace(drop_ins={})),
            search=SimpleNamespace(scan=scan, settled=True, took_s=0.0, missed=False),
            sightings=SimpleNamespace(begun=begun.wait),
            kernel=SimpleNamespace(works=False),
        )
        looking = asyncio.create_task(module._look(daemon))
        try:
            await asyncio.wait_for(looked.wait(), PATIENCE_S)
        finally:
            looking.cancel()
            await asyncio.wait([looking])

    asyncio.run(main())


def test_it_ends_though_a_gpu_is_opened_at_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until Python 3.12 `asyncio.wait_for` forgets that it was cancelled where what it waits for comes just then."""
    monkeypatch.setattr(module, "OpenWatch", lambda paths: Watch())

    async def main() -> None:
        begun = asyncio.Event()
        begun.set()
        opened = asyncio.Event()
        daemon: Any = SimpleNamespace(
            plane=SimpleNamespace(watch_paths=list),
            opened=opened,
            search=SimpleNamespace(took_s=0.0),
            sightings=SimpleNamespace(begun=begun.wait),
        )
        looking = asyncio.create_task(module._look(daemon))
        for _ in range(5):
            await asyncio.sleep(0)  # it waits
        opened.set()
        await asyncio.sleep(0)  # it has what it waits for
        looking.cancel()
        await asyncio.wait([looking])
        assert looking.cancelled()

    asyncio.run(main())

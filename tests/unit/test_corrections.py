"""Putting back what processes changed: its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

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

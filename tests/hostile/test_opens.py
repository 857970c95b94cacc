"""Whoever opens a GPU's files on and on has the daemon look as often as it would anyway, and wake no more often."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon import __main__ as module
from runlist.proc.inotify import OpenWatch
from tests.fixtures.adoption import until


def test_what_is_opened_faster_than_it_is_read_is_not_read_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia0").touch()
    watch, reads = OpenWatch([tmp_path / "nvidia0"]), []
    read = watch._read

    def opened_meanwhile() -> bytes:
        reads.append(1)
        assert len(reads) < 100, "it reads for ever"
        (tmp_path / "nvidia0").read_bytes()
        return read()

    monkeypatch.setattr(watch, "_read", opened_meanwhile)
    watch.drain()
    watch.close()


def _open_on_and_on(path: str) -> None:
    while True:
        os.close(os.open(path, os.O_RDONLY))


def test_a_flood_of_opens_is_told_once_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "nvidia0"
    path.touch()
    drained: list[int] = []
    scans: list[bool] = []
    drain = OpenWatch.drain

    def counted(watch: OpenWatch) -> None:
        drained.append(1)
        drain(watch)

    monkeypatch.setattr(OpenWatch, "drain", counted)
    monkeypatch.setattr(module, "FIRST_LOOK_S", 0.02)

    async def main() -> None:
        async def scan(*, walk: bool) -> None:
            scans.append(walk)

        async def begun() -> None:
            pass

        daemon: Any = SimpleNamespace(
            plane=SimpleNamespace(watch_paths=lambda: [path]),
            opened=asyncio.Event(),
            processes=SimpleNamespace(roots={1: object()}),
            placement=SimpleNamespace(rules=SimpleNamespace(drop_ins={})),
            search=SimpleNamespace(scan=scan, settled=True, took_s=0.0, missed=False),
            sightings=SimpleNamespace(begun=begun),
            kernel=SimpleNamespace(works=False),
        )
        looking = asyncio.create_task(module._look(daemon))
        await until(lambda: sum(scans) >= 10)
        looking.cancel()
        await asyncio.wait([looking])

    flood = multiprocessing.get_context("fork").Process(target=_open_on_and_on, args=(str(path),), daemon=True)
    flood.start()
    try:
        asyncio.run(main())
    finally:
        flood.kill()
        flood.join()
    assert len(drained) <= 2 * len(scans) + 2

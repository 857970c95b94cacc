"""One user with as many regions as there may be, each with as many processes as hold up nobody by themselves."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runlist.daemon.memory.quota import Quota
from runlist.daemon.tasks.managed import Root
from runlist.daemon.tree.processes import SLOTS_A_SECOND, SLOTS_AT_ONCE
from runlist.planes.process import region
from runlist.planes.process.region import snapshot
from runlist.planes.process.region.format import DEVICES, HEADER, SLOT, SLOTS_AT, USE
from runlist.proc.process import pid_namespace
from runlist.rate import Rate
from tests.fixtures.adoption import own_usage
from tests.fixtures.daemon import NOBODY
from tests.fixtures.manager import Managed, a_daemon

pytestmark = pytest.mark.usefixtures("own_usage")
__all__ = ["own_usage"]

REGIONS, SLOTS, ROUNDS = 40, 64, 4


def filled(folder: Path) -> region.Region:
    """A region with so many slots taken, by processes that may be there."""
    _, opened = region.create(folder, strict=False)
    use = [1] * len(USE.names) * DEVICES
    for index in range(SLOTS):
        fields = {"identity": 1 + index | 1 << 32, "pid_namespace": pid_namespace(), "use": use}
        os.pwrite(opened.fileno(), SLOT.pack(start_time=0, enforced=3, **fields), SLOTS_AT + index * SLOT.size)
    os.pwrite(opened.fileno(), SLOTS.to_bytes(4, "little"), HEADER.offsets["slots_used"])
    return opened


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[list[region.Region]]:
    made = [filled(tmp_path) for _ in range(REGIONS)]
    yield made
    for one in made:
        one.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes of which one asked whether they live."""
    pids: list[int] = []
    monkeypatch.setattr(snapshot, "start_of", lambda pid: pids.append(pid) or 7)
    return pids


def test_all_of_them_are_looked_at_for_so_much_a_second(regions: list[region.Region], asked: list[int]) -> None:
    theirs = Rate(SLOTS_A_SECOND, SLOTS_AT_ONCE)
    quotas = [Quota(one, reads=theirs) for one in regions]
    began = time.monotonic()
    for _ in range(ROUNDS):
        for quota in quotas:
            seen = quota.look(kept_s=0.0)
            assert seen is not None
            assert len(seen.processes()) == SLOTS
            assert len(seen.holders()) == SLOTS
    most = SLOTS_AT_ONCE + SLOTS_A_SECOND * (time.monotonic() - began) + SLOTS
    assert len(asked) <= REGIONS * SLOTS + most


def test_each_of_them_is_looked_at_in_its_turn(regions: list[region.Region]) -> None:
    """None is left out for those before it, and others come between."""

    async def test(world: Managed) -> None:
        vars(world.census).update(listed=lambda gpu: {}, answers=lambda gpu: True, unowned=lambda gpu: 0, heirs={})
        theirs = Rate(SLOTS_A_SECOND, SLOTS_AT_ONCE)
        quotas = [Quota(one, reads=theirs) for one in regions]
        roots = {-2 - number: Root(-2 - number, -1, NOBODY, {}, quota=quota) for number, quota in enumerate(quotas)}
        world.processes.roots |= roots
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        busy = asyncio.create_task(others())
        try:
            await world.guard.check()
            assert turns > 1
            since = time.monotonic()
            assert max(quota.read_at for quota in quotas) < since
            for _ in range(4 * REGIONS):
                await asyncio.sleep(SLOTS / SLOTS_A_SECOND)
                await world.guard.check()
                if min(quota.read_at for quota in quotas) > since:
                    break
            assert min(quota.read_at for quota in quotas) > since
        finally:
            busy.cancel()
            for pid in roots:
                del world.processes.roots[pid]

    a_daemon(test)

"""Whose relay costs whom what: with as many as there may be, and where one hangs."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial

import pytest

from runlist.daemon.relay import relays
from runlist.proc.owners import Owner
from tests.fixtures.daemon import PATIENCE_S
from tests.unit.test_relay import until
from tests.unit.test_relays import ONE, OTHER, World, run

pytestmark = pytest.mark.usefixtures("on_device")


def test_the_one_that_is_idle_for_longest_makes_room_and_none_that_looks_at_a_datagram(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it has received, and looks at, would be lost: the region of somebody's tree."""
    monkeypatch.setattr(relays, "MAX_RELAYS", 2)

    async def test(world: World) -> None:
        for owner in (ONE, OTHER):
            mine, _, ended = await world.served(owner)
            mine.close()
            ended()
        loop = asyncio.get_running_loop()
        before, taken = world.relays._relays[ONE].idle_since, loop.create_future()
        world.sender.send(b"a datagram")
        world.relays.take(ONE, True, lambda: taken.set_result(None))
        await asyncio.wait_for(taken, PATIENCE_S)
        assert world.relays._relays[ONE].idle_since > before
        await world.served(Owner(1003))
        assert set(world.relays._relays) == {ONE, Owner(1003)}

    run(test)


def test_a_container_that_has_its_relay_hang_costs_no_other_a_datagram() -> None:
    """Root in one is root in each, and what a program says of its clients it says once."""

    async def test(world: World) -> None:
        one, other = Owner(0, "1" * 64), Owner(0, "2" * 64)
        for owner in (one, other):
            world.sender.send(b"a datagram")
            taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            world.relays.take(owner, True, partial(taken.set_result, None))
            await asyncio.wait_for(taken, PATIENCE_S)
            await until(lambda: world.heard)
            if owner == one:
                world.heard.clear()
                os.kill(await world.relay_of(one), signal.SIGKILL)
                await until(lambda: one not in world.relays._relays)
        assert [datagram.record for datagram in world.heard] == [b"a datagram"]

    run(test)

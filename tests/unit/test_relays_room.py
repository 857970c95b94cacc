"""With as many relays as there may be: which one makes room for another user's."""

from __future__ import annotations

import asyncio

import pytest

from runlist.daemon.relay import relays
from runlist.proc.owners import Owner
from tests.fixtures.daemon import PATIENCE_S
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

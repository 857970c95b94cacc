"""What the connections of one user share, so that others come between, and nobody fills the daemon with answers."""

from __future__ import annotations

import asyncio

MOST_WAITING = 256
"""Requests."""

MOST_UNREAD = 32 << 20
"""Bytes of answers that were made and that nobody has read."""


class Turns:
    """The requests of one stranger, on all their connections; or of one connection of somebody else.

    `turn` is held by who has its turn, `making` by who makes a long answer.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self.unread = 0
        self.making = asyncio.Lock()
        self.turn = asyncio.Lock()

    async def next(self) -> None:
        """Wait for one's turn: there is one in each round of the loop, whatever the number of connections."""
        async with self.turn:
            await asyncio.sleep(0)

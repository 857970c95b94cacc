"""Answers that are read only if they have a bounded number of parts: two bytes can be a message, which takes a hundred
in memory, and more once it is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MOST_PARTS = 100_000
"""Containers, sandboxes or pods in one answer; a node has some hundreds."""


class Bounded:
    """A gRPC channel for a stub: answers with more parts fail as those that are no message do."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def unary_unary(
        self, method: str, write: Callable[[Any], bytes], read: Callable[[bytes], Any], *more: Any, **named: Any
    ) -> Any:
        """As the channel has it."""

        def read_bounded(data: bytes) -> Any:
            if has_more_parts(data, MOST_PARTS):
                raise ValueError(f"more than {MOST_PARTS:,} parts")
            return read(data)

        return self._channel.unary_unary(method, write, read_bounded, *more, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


def has_more_parts(data: bytes, most: int) -> bool:
    """Whether an encoded message has more fields than so many, of those that it has itself. What is cut short is left
    to who reads it.
    """
    at = count = 0
    try:
        while at < len(data):
            count += 1
            if count > most:
                return True
            tag, at = _number(data, at)
            match tag & 7:
                case 0:  # a number
                    _, at = _number(data, at)
                case 1:
                    at += 8
                case 2:  # bytes, text or a message
                    size, at = _number(data, at)
                    at += size
                case 5:
                    at += 4
    except IndexError:
        pass
    return False


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and what is behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 or shift > 63:
            return value, at

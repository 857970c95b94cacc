"""Readers that are given any input: what each is given, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from runlist.errors import UsageError


class Source(Protocol):
    """Where inputs come from."""

    def next(self) -> bytes:
        """Another one."""


class Reader(NamedTuple):
    """A reader: it raises one of `refuses` for what is not in order, and AssertionError for what it took wrongly."""

    inputs: Source
    read: Callable[[bytes], object]
    refuses: tuple[type[Exception], ...] = (UsageError,)
